"""Columns of the page: one for each accelerator, with its newest report and a line about each earlier one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from pathlib import Path

from conformance.reports.gate.finding import Decision
from conformance.reports.model import AcceleratorRecord, CaseRecord, Report, Run
from conformance.reports.page.cells import ENDING_OF, Ending, endings_of, letters_of
from conformance.reports.profiles import PROFILES, ProfileResult
from conformance.reports.verdict import Outcome


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
    def age(self) -> tuple[str, str]:
        """Return what runs of one accelerator are sorted by."""
        return self.report.run.started, self.report.run.id


@dataclass(frozen=True)
class EarlierRun:
    """Run that a newer one has replaced: its verdicts as letters, and a few facts. Runs of one plan share ``ids``."""

    run: Run
    accelerator: AcceleratorRecord
    ids: tuple[str, ...]
    letters: str
    #: Share of the claimed cases that pass, and median step times of workloads by case.
    verified: float = 0.0
    steps: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def endings(self) -> dict[str, Ending]:
        return {id: ENDING_OF[letter] for id, letter in zip(self.ids, self.letters, strict=True)}


@dataclass(frozen=True)
class PageColumn:
    """Column of the page. ``earlier`` has older runs of the same accelerator, the oldest first."""

    source: PublishedReport
    earlier: tuple[EarlierRun, ...] = ()

    @property
    def report(self) -> Report:
        return self.source.report

    @property
    def name(self) -> str:
        return self.report.accelerator.name

    @property
    def title(self) -> str:
        return self.name if self.source.origin is ReportOrigin.VENDOR else f"{self.name} (upstream)"

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
    """Return a column for each accelerator and origin, by name, with the newest report in front.

    One report of each column is held at a time: the others become short as soon as a newer one is there.
    """
    newest: dict[tuple[str, str], PublishedReport] = {}
    earlier: dict[tuple[str, str], list[EarlierRun]] = {}
    plans: dict[tuple[str, ...], tuple[str, ...]] = {}
    for source in sources:
        key = source.report.accelerator.name, source.origin.name
        known = newest.get(key)
        if known is None:
            newest[key] = source
            continue
        old, newest[key] = sorted((known, source), key=lambda one: one.age)
        earlier.setdefault(key, []).append(shortened(old.report, plans))
    return tuple(
        PageColumn(source, tuple(sorted(earlier.get(key, ()), key=lambda run: (run.run.started, run.run.id))))
        for key, source in sorted(newest.items())
    )


def shortened(report: Report, plans: dict[tuple[str, ...], tuple[str, ...]]) -> EarlierRun:
    """Return what the page keeps of an earlier run. ``plans`` holds the ids of each plan once."""
    endings = endings_of(report)
    ids = tuple(endings)
    counts = report.counts
    return EarlierRun(
        report.run,
        report.accelerator,
        plans.setdefault(ids, ids),
        letters_of(endings.values()),
        counts.of_device / counts.claimed if counts.claimed else 0.0,
        step_medians(report),
    )


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
