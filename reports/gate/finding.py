"""What the gate says: findings, each with the id of its rule and one sentence, and the decision they amount to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final

from conformance.reports.plain_text import one_line

_NAMED: Final = 3
_LONGEST_NAME: Final = 120


class Severity(Enum):
    """Whether a finding rejects the report, or is only told."""

    REJECT = "reject"
    NOTE = "note"


class GateStatus(IntEnum):
    """The exit statuses of the gate; usage errors are 4."""

    ACCEPTED = 0
    REJECTED = 1
    CANNOT_JUDGE = 2


@dataclass(frozen=True)
class Finding:
    """One thing that the gate saw. ``cases`` are the ids it is about, all of them; the sentence names a few."""

    rule: str
    sentence: str
    severity: Severity = Severity.REJECT
    cases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Decision:
    """Everything the gate found about one report."""

    accelerator: str
    profile: str
    findings: tuple[Finding, ...]
    #: Cases of the profile that had to pass, and that did or are validly waived.
    due: int = 0
    met: int = 0

    @property
    def rejections(self) -> tuple[Finding, ...]:
        return tuple(one for one in self.findings if one.severity is Severity.REJECT)

    @property
    def status(self) -> GateStatus:
        return GateStatus.REJECTED if self.rejections else GateStatus.ACCEPTED


def note(rule: str, sentence: str, cases: Iterable[str] = ()) -> Finding:
    return Finding(rule, sentence, Severity.NOTE, tuple(cases))


def reject(rule: str, sentence: str, cases: Iterable[str] = ()) -> Finding:
    return Finding(rule, sentence, Severity.REJECT, tuple(cases))


def named(ids: Sequence[str]) -> str:
    """The first few of the ids, and how many more there are. Ids of a report are a stranger's text."""
    shown = ", ".join(one_line(id, _LONGEST_NAME) for id in ids[:_NAMED])
    return shown if len(ids) <= _NAMED else f"{shown} and {len(ids) - _NAMED} more"


def counted(number: int, noun: str, plural: str = "") -> str:
    """``1 case``, ``2 cases``."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
