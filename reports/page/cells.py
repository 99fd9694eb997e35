"""Cells of the page: a symbol, a number and a few words, the same with and without JavaScript and colour."""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from typing import Final

from conformance.reports.model import Report
from conformance.reports.verdict import Outcome, Reason


class Mark(Enum):
    """Kind of a cell. The value is its name in ``matrix.json``."""

    FULL = "full"
    PART = "part"
    FAIL = "fail"
    CRASH = "crash"
    WAIVED = "waived"
    REFUSED = "refused"
    UNDECLARED = "undeclared"
    NO_DATA = "nodata"

    @property
    def facts(self) -> MarkFacts:
        return _FACTS[self]


@dataclass(frozen=True)
class MarkFacts:
    """Facts of a mark: its symbol, its class in the style sheet, its meaning, and its words in a cell without passes.

    ``number`` names the number that the cell shows.
    """

    sign: str
    style: str
    meaning: str
    words: str = ""
    number: str = ""


_FACTS: Final[Mapping[Mark, MarkFacts]] = {
    Mark.FULL: MarkFacts("✓", "ok", "all pass", number="passed"),
    Mark.PART: MarkFacts("◐", "pt", "a part passes, none fails", number="passed"),
    Mark.FAIL: MarkFacts("✕", "x", "fail: wrong, or an error", number="failed"),
    Mark.CRASH: MarkFacts("↯", "y", "fail: a crash or a hang", number="failed"),
    Mark.WAIVED: MarkFacts("△", "wv", "waived", "waived"),
    Mark.REFUSED: MarkFacts("○", "no", "no: declared, and refused", "no"),
    Mark.UNDECLARED: MarkFacts("?", "un", "undeclared", "undeclared"),
    Mark.NO_DATA: MarkFacts("–", "nr", "not run", "not run"),
}

#: Verdict of a case; None for a planned case without one.
Ending = tuple[Outcome, Reason] | None

#: One letter for each verdict. The page's script and the earlier runs of a column use it.
_PAIRS: Final = [(outcome, reason) for outcome in Outcome for reason in Reason if outcome in reason.facts.outcomes]
LETTERS: Final[Mapping[tuple[Outcome, Reason], str]] = dict(zip(_PAIRS, string.ascii_letters, strict=False))
LOST: Final = "."
ABSENT: Final = "-"
ENDING_OF: Final[Mapping[str, Ending]] = {letter: pair for pair, letter in LETTERS.items()} | {LOST: None}
_LETTER_OF: Final[Mapping[Ending, str]] = {ending: letter for letter, ending in ENDING_OF.items()}

_ID, _VERDICT, _IN_REFERENCE = attrgetter("id"), attrgetter("outcome", "reason"), attrgetter("in_reference")
#: Verdict of a case about which nothing is declared. It counts nowhere if PyTorch itself lacks the cell: nobody can
#: tell a missing operator from one that no device is asked to have.
_SILENT: Final = (Outcome.SKIP, Reason.UNDECLARED)

#: Verdicts after which the process had to be replaced.
SEVERE: Final = frozenset({Reason.CRASH, Reason.HANG, Reason.POISONED})
#: Shares of failing cases at which the fill of a cell becomes stronger.
FILLS: Final = (0.01, 0.05)


def letter_of(ending: Ending) -> str:
    return _LETTER_OF[ending]


def letters_of(endings: Iterable[Ending]) -> str:
    """Return the letters of many verdicts as one text."""
    return "".join(map(_LETTER_OF.__getitem__, endings))


@dataclass(frozen=True)
class PageCell:
    """Cell of the page: ``number`` planned cases, how many passed and failed, and whether one of the core failed."""

    mark: Mark
    number: int = 0
    passed: int = 0
    failed: int = 0
    core: bool = False

    @property
    def sign(self) -> str:
        return self.mark.facts.sign

    @property
    def count(self) -> int | None:
        """Return the number that the cell shows: of passes, or of failures; None if it shows words."""
        shown = self.mark.facts.number
        return {"passed": self.passed, "failed": self.failed}.get(shown)

    @property
    def style(self) -> str:
        """Return the class of the cell. Failures have a digit for the strength of the fill."""
        if self.mark not in (Mark.FAIL, Mark.CRASH):
            return self.mark.facts.style
        share = self.failed / self.number
        fill = 3 if self.core else 1 + sum(share >= limit for limit in FILLS)
        return f"{self.mark.facts.style}{fill}"

    @property
    def text(self) -> str:
        """Return the text, such as ``✓ 12``, ``◐ 7``, ``✕ 2`` (failures), ``○ no``, ``– not run``."""
        count = self.count
        return f"{self.sign} {self.mark.facts.words if count is None else format(count, ',')}"


def make_cell(endings: Iterable[Ending], *, core: bool = False) -> PageCell:
    """Return the cell that sums up some cases. A case that could not run is no data, and never a failure."""
    rows = list(endings)
    passed = sum(1 for ending in rows if ending and ending[0] is Outcome.PASS)
    failed = sum(1 for ending in rows if ending and ending[0] is Outcome.FAIL)
    return PageCell(_mark(rows, passed, failed), len(rows), passed, failed, core and bool(failed))


def _mark(rows: list[Ending], passed: int, failed: int) -> Mark:
    """Return the mark of some cases. A failure outweighs a pass; what is unknown is never shown as refused."""
    reasons = {ending[1] for ending in rows if ending}
    if failed:
        return Mark.CRASH if reasons & SEVERE else Mark.FAIL
    if passed:
        return Mark.FULL if passed == len(rows) else Mark.PART
    marks = {Mark(reason.facts.mark) for reason in reasons} | ({Mark.NO_DATA} if None in rows else set())
    order = (Mark.WAIVED, Mark.UNDECLARED, Mark.NO_DATA, Mark.REFUSED)
    return next((mark for mark in order if mark in marks), Mark.NO_DATA)


def endings_of(report: Report) -> dict[str, Ending]:
    """Return the verdict of every planned case of a report that says something about the device."""
    endings: dict[str, Ending] = {planned.id: None for planned in report.accounting.unaccounted}
    cases = report.cases
    # Columns of attributes, without a step of Python for each case.
    pairs = zip(map(_ID, cases), map(_VERDICT, cases), map(_IN_REFERENCE, cases), strict=True)
    endings |= {id: pair for id, pair, inside in pairs if inside or pair != _SILENT}
    return endings
