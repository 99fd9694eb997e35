"""Repro line: the command that repeats one case.

A line is built of checked parts, each quoted for a shell. A text that a report calls a repro line is never printed:
whoever wrote the report chose it, and whoever reads the report pastes it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final

from conformance.base.accelerator_name import is_accelerator_name
from conformance.base.options import BY_NAME, OPTIONS, Option, Value
from conformance.reports import redaction
from conformance.reports.calls import CALL, is_selector
from conformance.reports.model import CaseRecord, Report
from conformance.reports.plain_text import SAYS_REPRO, without_repro_lines

#: Characters of a case id or a file name in a repro line.
_LONGEST: Final = 1_000
#: Values of options that are one of a few words.
_WORD: Final = re.compile(r"[a-z][a-z-]{0,30}")
#: Options that decide how cases run and how they are judged, in their order in a line.
_REPEATED: Final = sorted((option for option in OPTIONS if option.repro), key=attrgetter("repro"))
_ISOLATION: Final = BY_NAME["--rank-isolation"].name


@dataclass(frozen=True)
class ReproLine:
    """Repro lines of a run: ``head``, a quoted case id, and ``tail``. An empty head means that the run has none."""

    head: str
    tail: str

    def of(self, id: str, metrics: Mapping[str, Any] = MappingProxyType({})) -> str:
        """Return the line of a case, or an empty text if the id cannot stand in one.

        If the metrics of the case name the call that failed, the line runs that call alone.
        """
        if not self.head or not is_repeatable(id):
            return ""
        call = str(metrics.get(CALL, ""))
        return f"{self.head}{shlex.quote(id + call if is_selector(call) else id)}{self.tail}"


def is_repeatable(id: str) -> bool:
    """Return whether a case id can stand in a command line, and can be read there as it is.

    ``@`` begins the name of a file with arguments, and ``-`` an option.
    """
    return 0 < len(id) <= _LONGEST and id.isprintable() and (id[0].isalnum() or id[0] in "_./…")


def repro(header: Mapping[str, Any], id: str, metrics: Mapping[str, Any] = MappingProxyType({})) -> str:
    """Return a command line that runs the case alone, in one process; empty if a part of it is not valid.

    If the metrics of the case name the call that failed, the line runs that call alone.
    """
    return repro_line(header).of(id, metrics)


def repro_line(header: Mapping[str, Any]) -> ReproLine:
    """Return the repro lines of a run.

    ``header`` is a run's header as the journal has it: ``spec``, ``paths`` of a vendor's own cases, ``argv``,
    ``seed``, ``strictness``, ``rank_isolation``; missing members have their defaults. A value that this suite would
    not have written leaves its option out; without a valid accelerator there is no line.
    """
    head = _command(header)
    if not head:
        return ReproLine("", "")
    return ReproLine(f"{shlex.join([*head, '--case'])} ", f" {shlex.join(['-n0', *_settings(header)])}")


def rerun(header: Mapping[str, Any], file: str) -> str:
    """Return a command line that runs the cases in a file again, with the settings of a run."""
    head = _command(header)
    return shlex.join([*head, "--case-file", file, *_settings(header)]) if head else ""


def whole(header: Mapping[str, Any]) -> str:
    """Return a command line that runs every case, with the settings of a run."""
    head = _command(header)
    return shlex.join([*head, *_settings(header)]) if head else ""


def _command(header: Mapping[str, Any]) -> list[str]:
    """Return the words that begin a command line: pytest, files and accelerator. None without an accelerator."""
    spec = str(header.get("spec") or header.get("accelerator") or "auto")
    if not is_accelerator_name(spec):
        return []
    files = [file for file in redaction.strings(header.get("paths")) if is_repeatable(file)]
    return ["pytest", *files, f"--accelerator={spec}"]


def _settings(header: Mapping[str, Any]) -> list[str]:
    """Return the options that decide how cases run and how they are judged."""
    return [word for option in _REPEATED for word in _setting(option, header)]


def _setting(option: Option, header: Mapping[str, Any]) -> list[str]:
    """Return the words of an option: none if the run had the default."""
    if not option.fact:
        return _typed(option.name, redaction.strings(header.get("argv")))
    value = header.get(option.fact)
    if option.value is Value.SEED:
        value = str(redaction.whole(value))
    elif not isinstance(value, str) or not _WORD.fullmatch(value):
        return []
    return [] if value == option.default else [f"{option.name}={value}"]


def _typed(name: str, argv: Sequence[str]) -> list[str]:
    """Return an option with a file, in the form in which it stands on a command line."""
    for word, following in zip(argv, [*argv[1:], ""], strict=False):
        if word.startswith(f"{name}=") and is_repeatable(word.partition("=")[2]):
            return [word]
        if word == name and is_repeatable(following):
            return [word, following]
    return []


def repro_line_of(report: Report) -> ReproLine:
    """Return the repro lines of a report's run, from its accelerator and its command line."""
    run, argv = report.run, report.run.invocation.argv
    isolation = [word.partition("=")[2] for word in argv if word.startswith(f"{_ISOLATION}=")]
    return repro_line(
        {
            "spec": report.accelerator.spec or report.accelerator.name,
            "paths": [word for word in argv if word.endswith(".py")] if "paths" in run.invocation.selection else [],
            "argv": argv,
            "seed": run.invocation.seed,
            "strictness": run.strictness,
            "rank_isolation": isolation[-1] if isolation else "",
        }
    )


def with_own_repro_lines(report: Report) -> Report:
    """Return the report with lines of :func:`repro_line_of` in place of every repro line that it came with."""
    is_table = hasattr(report.cases, "with_texts")
    if not (_one_by_one if is_table else _together)(report.cases):
        return report
    line = repro_line_of(report)
    if is_table:
        table: Any = report.cases
        return replace(report, cases=table.with_texts(lambda case: _with_own(case, line)))
    return replace(report, cases=tuple(_with_own(case, line) for case in report.cases))


def _one_by_one(cases: Iterable[CaseRecord]) -> bool:
    """Return whether a case has a repro line. A table of many cases does not make them all at once."""
    return any(case.repro or SAYS_REPRO.search(case.message) for case in cases)


def _together(cases: Sequence[CaseRecord]) -> bool:
    """Return whether a case may have a repro line: one search for all of them."""
    texts = "\n".join(map(attrgetter("message"), cases))
    return any(map(attrgetter("repro"), cases)) or "repro" in texts.lower()


def _with_own(case: CaseRecord, line: ReproLine) -> CaseRecord:
    message = without_repro_lines(case.message)
    if not case.repro and message == case.message:
        return case
    return replace(case, message=message, repro=line.of(case.id, case.metrics) if case.repro else "")
