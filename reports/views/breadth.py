"""Breadth of a report, area by area: how much of the plan was claimed and executed, in the dtypes that are declared."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Final

from tabulate import tabulate

from conformance.base.claim_lookup import split_cell
from conformance.reports.model import Report
from conformance.reports.plain_text import one_line
from conformance.reports.totals import was_executed

SUMMARY = "shares of the plan by area"

_TITLES: Final = ("area", "planned", "in its dtypes", "executed", "share", "on ranks")


@dataclass
class AreaExecution:
    """Planned cases of an area, those in the declared dtypes, those of them that ran, and those that need ranks."""

    planned: int = 0
    in_dtypes: int = 0
    executed: int = 0
    on_ranks: int = 0

    @property
    def share(self) -> float:
        """Return the executed cases of those in the declared dtypes; 0 if there are none."""
        return self.executed / self.in_dtypes if self.in_dtypes else 0.0


def declared_dtypes(report: Report) -> frozenset[str]:
    """Return the dtypes in which the declaration claims that operators compute."""
    axes = (
        split_cell(claim.cell)[1]
        for claim in report.declaration.cells
        if claim.state == "supported" and claim.cell.startswith("operators.")
    )
    return frozenset(text.partition("-")[0] for text in axes if text)


def executions(report: Report) -> dict[str, AreaExecution]:
    """Return the numbers of each area, sorted by its name."""
    dtypes, found = declared_dtypes(report), defaultdict[str, AreaExecution](AreaExecution)
    for case in report.cases:
        area = found[case.area]
        area.planned += 1
        area.on_ranks += case.world_size is not None
        if case.axes.get("dtype") in (None, *dtypes):
            area.in_dtypes += 1
            area.executed += was_executed(case.outcome, case.reason)
    for planned in report.accounting.unaccounted:
        found[planned.area].planned += 1
        found[planned.area].in_dtypes += planned.axes.get("dtype") in (None, *dtypes)
    return dict(sorted(found.items()))


def render(report: Report, _width: int = 0) -> str:
    """Return the table, and the profile with what keeps the run from the larger ones."""
    rows = [
        (
            one_line(name, 30),
            area.planned,
            area.in_dtypes,
            area.executed,
            f"{100 * area.share:.1f} %",
            area.on_ranks or "",
        )
        for name, area in executions(report).items()
    ]
    align = ["left", *["right"] * (len(_TITLES) - 1)]
    table = tabulate(rows, _TITLES, "simple", colalign=align, disable_numparse=True)
    lacks = [f"{result.name} needs: {one_line(lack)}" for result in report.profile_results for lack in result.lacks]
    name = one_line(report.accelerator.name, 100)
    return "\n".join([table, "", f"{name}: profile {report.profile_text}", *lacks]) + "\n"
