"""Causes of failures: cases with one reason, whose messages differ only in names and numbers."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from conformance.reports.calls import CALL, fields_of
from conformance.reports.model import CaseRecord
from conformance.reports.verdict import Reason

#: Parts of a message that differ from case to case: quoted texts, lists, calls, dtypes and numbers.
_CHANGING: Final = re.compile(
    r"'[^'\n]*'|\"[^\"\n]*\"|\[[^]\n]*]|\{[^}\n]*}|<[^>\n]*>"
    r"|[\w.:]+\(\)|\b(?:torch\.)?(?:b?float\d\w*|complex\d+|u?int\d+|bool)\b|[-+]?\d[\d.,:]*(?:e[-+]?\d+)?"
)
#: Fields of a call that failures of one cause share; the sample and its source differ from operator to operator.
_OF_CAUSE: Final = ("form", "arrangement", "change")
#: The sample in the label of a call, with its shapes.
_SAMPLE: Final = re.compile(r"^sample \d+ \((?:[^()]|\([^()]*\))*\)")
#: Characters of a message that are compared.
_COMPARED: Final = 300


@dataclass(frozen=True)
class Cause:
    """Failures that look like one defect, in the order of the report."""

    cases: tuple[CaseRecord, ...]

    @property
    def first(self) -> CaseRecord:
        """Return the case that stands for all of them."""
        return self.cases[0]

    @property
    def reason(self) -> Reason:
        return self.first.reason


def causes(failed: Iterable[CaseRecord]) -> tuple[Cause, ...]:
    """Return the failures by cause, the most frequent cause first."""
    groups: dict[tuple[Reason, str], list[CaseRecord]] = defaultdict(list)
    for case in failed:
        groups[case.reason, cause_key(case)].append(case)
    # Sorting is stable: causes that are equally frequent stay in the order of the report.
    return tuple(Cause(tuple(cases)) for cases in sorted(groups.values(), key=len, reverse=True))


def cause_key(case: CaseRecord) -> str:
    """Return what failures of one cause have in common.

    Of a failed call of an operator, these are the fields of the call without its sample, and what was said about it.
    Of any other case, it is the first line of its message without its own name and without numbers.
    """
    line = next((line for line in case.message.splitlines() if line.strip()), "")
    metrics: Mapping[str, Any] = getattr(case, "metrics", {})
    call = fields_of(str(metrics.get(CALL, "")))
    if call:
        shared = [f"{name}={re.sub(r'[0-9]+', '…', call[name])}" for name in _OF_CAUSE if name in call]
        said = line.rpartition(": ")[2]
        return f"{', '.join(shared)}: {_CHANGING.sub('…', said[:_COMPARED])}"
    line = _SAMPLE.sub("sample …", line)[:_COMPARED]
    name = case.id.partition("[")[0].rpartition(".")[2]
    # As in "aten::add.out raises": with the prefix and the overload of an operator.
    own = re.sub(rf"(?:[\w.:]*[.:])?\b{re.escape(name)}\b(?:\.\w+)?", "…", line) if name else line
    return _CHANGING.sub("…", own)
