"""Columns of the page: one for each accelerator, with its newest report and the earlier ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from conformance.reports.gate.finding import Decision
from conformance.reports.model import CaseRecord, Report
from conformance.reports.page.cells import Ending, endings_of
from conformance.reports.profiles import PROFILES, ProfileResult


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


@dataclass(frozen=True)
class PageColumn:
    """Column of the page. ``earlier`` has older runs of the same accelerator, the oldest first."""

    source: PublishedReport
    earlier: tuple[Report, ...] = ()

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

    @property
    def aim(self) -> ProfileResult:
        """Return the result on the card: of the run's profile, else of the one it reached, else of the smallest."""
        wanted = self.report.run.profile or self.report.badge or next(iter(PROFILES))
        return next(
            (result for result in self.report.profile_results if result.name == wanted), self.report.profile_results[0]
        )


def make_columns(sources: Iterable[PublishedReport]) -> tuple[PageColumn, ...]:
    """Return a column for each accelerator and origin, by name, with the newest report in front."""
    groups: defaultdict[tuple[str, str], list[PublishedReport]] = defaultdict(list)
    for source in sources:
        groups[source.report.accelerator.name, source.origin.name].append(source)
    return tuple(_column(group) for _, group in sorted(groups.items()))


def _column(group: list[PublishedReport]) -> PageColumn:
    *earlier, newest = sorted(group, key=lambda source: (source.report.run.started, source.report.run.id))
    return PageColumn(newest, tuple(source.report for source in earlier))
