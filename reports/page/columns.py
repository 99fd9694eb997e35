"""Columns of the page: one for each accelerator, with its newest report and a line about each earlier one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from conformance.reports.gate.finding import Decision
from conformance.reports.junit_import import without_rows
from conformance.reports.model import AcceleratorRecord, CaseRecord, DeclarationRecord, Report, Run
from conformance.reports.page.cells import ENDING_OF, Ending, endings_of, letters_of
from conformance.reports.plain_text import one_line
from conformance.reports.profiles import PROFILES, ProfileResult
from conformance.reports.times import in_order
from conformance.reports.verdict import Outcome

#: Members of a case that its plan gives it, and that take memory.
_PLANNED: Final = ("id", "requires", "axes")


class ReportOrigin(Enum):
    """Origin of a report: who ran the suite. Reports of different origins never share a column."""

    VENDOR = "reported by its vendor"
    UPSTREAM = "run by the maintainers"


@dataclass(frozen=True)
class PublishedReport:
    """Report with facts from outside it. ``signer`` is the principal of its verified signature, if any."""

    report: Report
    origin: ReportOrigin = ReportOrigin.VENDOR
    signer: str = ""
    #: What the gate says about the report; None if nobody asked it.
    decision: Decision | None = None
    #: The file, for messages.
    path: Path | None = None

    @property
    def age(self) -> tuple[datetime, str, str]:
        """Return what runs of one accelerator are sorted by: a time, because texts of two zones sort wrongly."""
        return age_of(self.report.run)

    @property
    def is_accepted(self) -> bool:
        """Return whether the gate accepts the report, or nobody has asked it."""
        return self.decision is None or not self.decision.rejections

    @property
    def place(self) -> ColumnPlace:
        """Return the column that the report may be in."""
        run = self.report.run
        kind = "a selection" if run.invocation.selection else f"profile {run.profile or 'full'}"
        return ColumnPlace(self.report.accelerator.name, self.origin, self.signer, kind, self.is_accepted)


def age_of(run: Run) -> tuple[datetime, str, str]:
    return *in_order(run.started), run.id


@dataclass(frozen=True)
class ColumnPlace:
    """Place of a column: a report replaces only reports of its own place.

    A column belongs to a principal: what somebody else signed, or nobody, stands beside it. A run of another profile
    does too. ``accepted``: a signed report that the gate accepts is not replaced by one that it rejects.
    """

    name: str
    origin: ReportOrigin
    signer: str
    kind: str
    accepted: bool

    @property
    def rank(self) -> tuple[bool, bool, bool, str, str]:
        """Return what the columns of an accelerator are sorted by: the one that has its name alone comes first."""
        return not self.signer, not self.accepted, self.kind != "profile full", self.kind, self.signer

    def marks(self, first: ColumnPlace) -> str:
        """Return in words how the column differs from the first one of its accelerator."""
        said = []
        if self.signer != first.signer:
            said.append(f"signed by {one_line(self.signer, 80)}" if self.signer else "unsigned")
        if self.kind != first.kind:
            said.append(self.kind)
        if self.accepted != first.accepted and not said:
            said.append("newer, accepted" if self.accepted else "newer, rejected")
        return ", ".join(said)


@dataclass(frozen=True)
class EarlierRun:
    """Run that a newer one has replaced: its verdicts as letters, and a few facts. Runs of one plan share ``ids``."""

    #: The report without its cases and claims: who ran what, on which stack.
    head: Report
    ids: tuple[str, ...]
    letters: str
    #: Share of the claimed cases that pass, and median step times of workloads by case.
    verified: float = 0.0
    steps: Mapping[str, float] = field(default_factory=dict)

    @property
    def run(self) -> Run:
        return self.head.run

    @property
    def accelerator(self) -> AcceleratorRecord:
        return self.head.accelerator

    @cached_property
    def endings(self) -> dict[str, Ending]:
        return {id: ENDING_OF[letter] for id, letter in zip(self.ids, self.letters, strict=True)}


@dataclass(frozen=True)
class PageColumn:
    """Column of the page. ``earlier`` has older runs of the same accelerator, the oldest first."""

    source: PublishedReport
    earlier: tuple[EarlierRun, ...] = ()
    #: How the column differs from the first one of its accelerator; empty for the first one.
    mark: str = ""

    @property
    def report(self) -> Report:
        return self.source.report

    @cached_property
    def own(self) -> Report:
        """Return the report without the rows of other suites, which only the matrix shows."""
        return without_rows(self.report)

    @property
    def name(self) -> str:
        return self.report.accelerator.name

    @property
    def title(self) -> str:
        marks = [
            *([] if self.source.origin is ReportOrigin.VENDOR else ["upstream"]),
            *([self.mark] if self.mark else []),
        ]
        return f"{self.name} ({', '.join(marks)})" if marks else self.name

    @cached_property
    def cases(self) -> dict[str, CaseRecord]:
        return {case.id: case for case in self.report.cases}

    @cached_property
    def endings(self) -> dict[str, Ending]:
        """Return every planned case with its verdict."""
        return endings_of(self.report)

    @cached_property
    def core_failures(self) -> frozenset[str]:
        """Return the failed cases of the core, which no waiver excuses."""
        return frozenset(c.id for c in self.report.cases if c.outcome is Outcome.FAIL and c.level == "core")

    @property
    def aim(self) -> ProfileResult:
        """Return the result on the page: of the run's profile, else of the one it reached, else of the smallest."""
        wanted = self.report.run.profile or self.report.badge or next(iter(PROFILES))
        return next(
            (result for result in self.report.profile_results if result.name == wanted), self.report.profile_results[0]
        )


def make_columns(sources: Iterable[PublishedReport]) -> tuple[PageColumn, ...]:
    """Return the columns by name, each with its newest report in front.

    One report of each place is held at a time: the others become short as soon as a newer one is there.
    """
    newest: dict[ColumnPlace, PublishedReport] = {}
    earlier: dict[ColumnPlace, list[EarlierRun]] = {}
    plans: dict[tuple[str, ...], tuple[str, ...]] = {}
    plan: dict[str, Any] = {}
    for source in sources:
        place = source.place
        known = newest.get(place)
        if known is None or known.age < source.age:
            _share(source.report.cases, plan)
            newest[place] = source
            old = known
        else:
            old = source
        if old is not None:
            earlier.setdefault(place, []).append(shortened(old.report, plans))
    for place in [place for place in newest if not place.accepted]:
        _join(place, newest, earlier, plans)
    for place in [place for place in newest if not place.accepted]:
        _follow(place, newest, earlier, plans)
    return tuple(_marked(newest, earlier))


def _share(cases: Sequence[CaseRecord], plan: dict[str, Any]) -> None:
    """Let the cases of several reports share what a plan gives them: their ids, axes and requirements.

    Ten reports of 18,000 cases then take a third less memory.
    """
    if not isinstance(cases, tuple):
        return  # a table of a large report, which makes its records when they are asked for
    for case in cases:
        members = case.__dict__
        known = plan.setdefault(case.id, {name: members[name] for name in _PLANNED if name in members})
        for name in _PLANNED:
            if known.get(name) == members.get(name) and name in known:
                members[name] = known[name]


def _join(
    place: ColumnPlace,
    newest: dict[ColumnPlace, PublishedReport],
    earlier: dict[ColumnPlace, list[EarlierRun]],
    plans: dict[tuple[str, ...], tuple[str, ...]],
) -> None:
    """Move rejected runs into the history of the accepted ones if a newer run is accepted, or if nobody signed them."""
    accepted = replace(place, accepted=True)
    if accepted not in newest or (place.signer and newest[place].age > newest[accepted].age):
        return
    old, new = sorted((newest.pop(place), newest[accepted]), key=lambda one: one.age)
    newest[accepted] = new
    earlier.setdefault(accepted, []).extend([shortened(old.report, plans), *earlier.pop(place, ())])


def _follow(
    place: ColumnPlace,
    newest: Mapping[ColumnPlace, PublishedReport],
    earlier: dict[ColumnPlace, list[EarlierRun]],
    plans: dict[tuple[str, ...], tuple[str, ...]],
) -> None:
    """Give a rejected column the accepted runs before it as its history, so that it says what became worse."""
    accepted = replace(place, accepted=True)
    if accepted in newest:
        before = [shortened(newest[accepted].report, plans), *earlier.get(accepted, ())]
        earlier.setdefault(place, []).extend(before)


def _marked(
    newest: Mapping[ColumnPlace, PublishedReport], earlier: Mapping[ColumnPlace, Sequence[EarlierRun]]
) -> Iterator[PageColumn]:
    """Yield the columns in order. Those of one accelerator and origin follow each other, and say how they differ."""
    order = sorted(newest, key=lambda place: (place.name, place.origin.name, place.rank))
    for _, places in groupby(order, key=lambda place: (place.name, place.origin)):
        first, *others = places
        for place in (first, *others):
            runs = tuple(sorted(earlier.get(place, ()), key=lambda run: age_of(run.run)))
            yield PageColumn(newest[place], runs, place.marks(first) if place is not first else "")


def shortened(report: Report, plans: dict[tuple[str, ...], tuple[str, ...]]) -> EarlierRun:
    """Return what the page keeps of an earlier run. ``plans`` holds the ids of each plan once."""
    endings = endings_of(report)
    ids = tuple(endings)
    counts = report.counts
    return EarlierRun(
        head_of(report),
        plans.setdefault(ids, ids),
        letters_of(endings.values()),
        counts.of_device / counts.claimed if counts.claimed else 0.0,
        step_medians(report),
    )


def head_of(report: Report) -> Report:
    """Return the report without cases and claims. Its declaration keeps the hash."""
    declaration = DeclarationRecord(report.declaration.sha256)
    return Report(report.run, report.accelerator, report.environment, declaration, schema=report.schema)


def step_medians(report: Report) -> dict[str, float]:
    """Return the median step time in milliseconds of each workload that passed."""
    found = {}
    for case in report.cases:
        if "step_ms_median" in case.metrics and case.outcome is Outcome.PASS:
            value = case.metrics["step_ms_median"]
            # A hostile report may hold an infinite time, or a text.
            if isinstance(value, (int, float)) and 0 <= value < 1e9:
                found[case.id] = float(value)
    return found
