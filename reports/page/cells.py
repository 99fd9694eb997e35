"""Cells of the page: a symbol and a few words, the same with and without JavaScript and colour."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from conformance.reports.model import Report
from conformance.reports.verdict import Outcome, Reason


class Mark(Enum):
    """Symbol of a cell. The value is its class in the style sheet."""

    FULL = "full"
    PART = "part"
    REFUSED = "refused"
    FAIL = "fail"
    UNDECLARED = "undeclared"
    NO_DATA = "nodata"

    @property
    def sign(self) -> str:
        return _SIGNS[self]

    @property
    def meaning(self) -> str:
        return _MEANINGS[self]


_SIGNS = {
    Mark.FULL: "●",
    Mark.PART: "◐",
    Mark.REFUSED: "○",
    Mark.FAIL: "✕",
    Mark.UNDECLARED: "?",
    Mark.NO_DATA: "–",
}
_MEANINGS = {
    Mark.FULL: "every case passes",
    Mark.PART: "some cases pass, none fails; the rest is not claimed, or could not run",
    Mark.REFUSED: "declared unsupported, and seen to be",
    Mark.FAIL: "a case fails, or the declaration is false",
    Mark.UNDECLARED: "nothing is declared",
    Mark.NO_DATA: "no data: nothing ran",
}

#: Verdict of a case; None for a planned case without one.
Ending = tuple[Outcome, Reason] | None


@dataclass(frozen=True)
class PageCell:
    """Cell of the page: ``number`` planned cases, and how many of them passed and failed."""

    mark: Mark
    number: int = 0
    passed: int = 0
    failed: int = 0

    @property
    def text(self) -> str:
        """Return the text, such as ``● 12``, ``◐ 7/9``, ``✕ 2/9`` (failures of all), ``○``, ``?``, ``–``."""
        if self.mark is Mark.FULL:
            return f"{self.mark.sign} {self.number}"
        if self.mark is Mark.PART:
            return f"{self.mark.sign} {self.passed}/{self.number}"
        if self.mark is Mark.FAIL:
            return f"{self.mark.sign} {self.failed}/{self.number}"
        return self.mark.sign


def make_cell(endings: Iterable[Ending]) -> PageCell:
    """Return the cell that sums up some cases. A case that could not run is no data, and never a failure."""
    rows = list(endings)
    passed = sum(1 for ending in rows if ending and ending[0] is Outcome.PASS)
    failed = sum(1 for ending in rows if ending and ending[0] is Outcome.FAIL)
    return PageCell(_mark(rows, passed, failed), len(rows), passed, failed)


def _mark(rows: list[Ending], passed: int, failed: int) -> Mark:
    """Return the mark of some cases: a failure outweighs a pass, which outweighs a refusal."""
    if failed:
        return Mark.FAIL
    if passed:
        return Mark.FULL if passed == len(rows) else Mark.PART
    marks = {Mark(reason.facts.mark) for reason in {ending[1] for ending in rows if ending}}
    return next((mark for mark in (Mark.REFUSED, Mark.UNDECLARED) if mark in marks), Mark.NO_DATA)


def endings_of(report: Report) -> dict[str, Ending]:
    """Return every planned case of a report with its verdict."""
    lost: dict[str, Ending] = {planned.id: None for planned in report.accounting.unaccounted}
    return lost | {case.id: (case.outcome, case.reason) for case in report.cases}
