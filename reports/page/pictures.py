"""Pictures as values, which the template draws as inline SVG. Tables have all of their information too."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from conformance.reports.matrix import DTYPE_ORDER
from conformance.reports.model import CaseRecord, Report
from conformance.reports.page.cells import PageCell
from conformance.reports.page.columns import PageColumn
from conformance.reports.page.packing import RATIO
from conformance.reports.page.table import AreaRows
from conformance.reports.verdict import Outcome

#: The strip's axis: powers of two of the error budget, from a thousandth to eight times the budget.
LEAST, MOST = -10, 3
_SPARK_WIDTH, _SPARK_HEIGHT = 96, 20


@dataclass(frozen=True)
class Tile:
    """Tile of one area on one accelerator. ``step`` is 0 (nothing verified) to 4 (everything)."""

    area: str
    column: str
    cell: PageCell
    step: int


def heat_map(rows: Sequence[AreaRows], columns: Sequence[PageColumn]) -> tuple[tuple[Tile, ...], ...]:
    """Return tiles by area: the share of planned cases that pass on each accelerator."""
    titles = [column.title for column in columns]
    return tuple(
        tuple(Tile(row.name, title, cell, _step(cell)) for title, cell in zip(titles, row.cells, strict=True))
        for row in rows
    )


def _step(cell: PageCell) -> int:
    return 0 if not cell.number else 4 * cell.passed // cell.number


@dataclass(frozen=True)
class Strip:
    """Strip of one dtype: the number of cases whose error uses each power of two of its budget."""

    dtype: str
    cases: int
    exact: int
    bins: tuple[int, ...]
    worst: float

    @property
    def tallest(self) -> int:
        return max(self.bins, default=0) or 1


def error_strips(cases: Iterable[CaseRecord]) -> tuple[Strip, ...]:
    """Return a strip for each dtype with measured errors, in the order of the matrix."""
    ratios: defaultdict[str, list[float]] = defaultdict(list)
    for case in cases:
        ratio, dtype = case.metrics.get(RATIO), case.axes.get("dtype")
        if dtype and isinstance(ratio, (int, float)) and math.isfinite(ratio):
            ratios[dtype].append(float(ratio))
    known = [dtype for dtype in DTYPE_ORDER if dtype in ratios]
    return tuple(_strip(dtype, ratios[dtype]) for dtype in [*known, *sorted(set(ratios) - set(known))])


def _strip(dtype: str, ratios: Sequence[float]) -> Strip:
    """Return the strip of a dtype: a histogram over powers of two of the ratio of error to tolerance."""
    bins = [0] * (MOST - LEAST)
    for ratio in ratios:
        if ratio > 0:
            # Ratios beyond the ends count in the outermost bins, so the bins hold every positive ratio.
            bins[min(max(math.ceil(math.log2(ratio)) - LEAST - 1, 0), len(bins) - 1)] += 1
    return Strip(dtype, len(ratios), sum(1 for ratio in ratios if ratio <= 0), tuple(bins), max(ratios))


@dataclass(frozen=True)
class StepTime:
    """Time of a step of one workload on one accelerator: median and 90th percentile in milliseconds."""

    workload: str
    column: str
    median: float
    p90: float


def step_times(columns: Sequence[PageColumn]) -> tuple[tuple[StepTime, ...], ...]:
    """Return step times by workload, with the accelerators beside each other."""
    groups: defaultdict[str, list[StepTime]] = defaultdict(list)
    for column in columns:
        for case in column.report.cases:
            median, p90 = case.metrics.get("step_ms_median"), case.metrics.get("step_ms_p90")
            if case.outcome is Outcome.PASS and _is_time(median) and _is_time(p90):
                groups[case.id].append(StepTime(case.id, column.title, float(median or 0), float(p90 or 0)))
    return tuple(tuple(bars) for _, bars in sorted(groups.items()))


def _is_time(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value) and value >= 0


def sparkline(column: PageColumn) -> str:
    """Return the points of a polyline through the verified share of every run; empty for a single run."""
    shares = [_verified(report) for report in (*column.earlier, column.report)]
    if len(shares) < 2:
        return ""
    wide = _SPARK_WIDTH / (len(shares) - 1)
    return " ".join(f"{place * wide:.1f},{_SPARK_HEIGHT * (1 - share):.1f}" for place, share in enumerate(shares))


def _verified(report: Report) -> float:
    counts = report.counts
    return counts.of_device / counts.claimed if counts.claimed else 0.0
