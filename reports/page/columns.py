"""The columns of the page: one accelerator each, with its newest report and those before it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from conformance.reports.model import CaseRecord, Report
from conformance.reports.page.cells import Ending, endings_of
from conformance.reports.profiles import PROFILES, ProfileResult


class ReportOrigin(Enum):
    """Who ran the suite; the two are never one column."""

    VENDOR = "reported by its vendor"
    UPSTREAM = "run by the maintainers"


@dataclass(frozen=True)
class PublishedReport:
    """One report with what is known about it from outside. ``signer`` is whose signature was verified."""

    report: Report
    origin: ReportOrigin = ReportOrigin.VENDOR
    signer: str = ""


@dataclass(frozen=True)
class PageColumn:
    """``earlier`` are older runs of the same accelerator, the oldest first."""

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
        """Every planned case with its verdict."""
        return endings_of(self.report)

    @property
    def aim(self) -> ProfileResult:
        """The profile that the card counts: the one the run was for, or the one it reached, or the least."""
        wanted = self.report.run.profile or self.report.badge or next(iter(PROFILES))
        return next(
            (result for result in self.report.profile_results if result.name == wanted), self.report.profile_results[0]
        )


def make_columns(sources: Iterable[PublishedReport]) -> tuple[PageColumn, ...]:
    """One column for each accelerator and origin, by name; the newest report is the column's."""
    groups: defaultdict[tuple[str, str], list[PublishedReport]] = defaultdict(list)
    for source in sources:
        groups[source.report.accelerator.name, source.origin.name].append(source)
    return tuple(_column(group) for _, group in sorted(groups.items()))


def _column(group: list[PublishedReport]) -> PageColumn:
    *earlier, newest = sorted(group, key=lambda source: (source.report.run.started, source.report.run.id))
    return PageColumn(newest, tuple(source.report for source in earlier))
