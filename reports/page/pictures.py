"""Pictures as values, which the template draws as inline SVG. Tables have all of their information too."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from conformance.reports.junit_import import is_foreign
from conformance.reports.matrix import DTYPE_ORDER
from conformance.reports.model import CaseRecord
from conformance.reports.page.cells import PageCell
from conformance.reports.page.columns import PageColumn, step_medians
from conformance.reports.page.packing import RATIO
from conformance.reports.page.table import AreaRows
from conformance.reports.plain_text import one_line
from conformance.reports.verdict import Reason

#: The speed plot: places of the axes, distance of labels, and the workloads that are drawn.
_LEFT, _RIGHT, _TOP, _BOTTOM, _LINE = 70, 370, 14, 170, 15
_MOST_PLOTS = 12
#: The strip's axis: powers of two of the error budget, from a thousandth to eight times the budget.
LEAST, MOST = -10, 3


@dataclass(frozen=True)
class Tile:
    """Tile of one area on one accelerator. ``step`` is 0 (nothing passes) to 4 (everything)."""

    area: str
    cell: PageCell

    @property
    def step(self) -> int:
        return 0 if not self.cell.number else 4 * self.cell.passed // self.cell.number

    @property
    def text(self) -> str:
        """Return the share in percent, rounded down: 100 means every case."""
        return str(100 * self.cell.passed // self.cell.number) if self.cell.number else "–"


def heat_map(rows: Sequence[AreaRows]) -> tuple[tuple[Tile, ...], ...]:
    """Return tiles by area: the share of planned cases that pass on each accelerator. Foreign rows have no share."""
    ours = (row for row in rows if not is_foreign(row.name))
    return tuple(tuple(Tile(row.name, cell) for cell in row.cells) for row in ours)


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
class Series:
    """Line of one accelerator in a plot. ``label`` is the height of its name, which never covers another name.

    ``number`` is the column's place on the page, so that an accelerator has one colour in all plots.
    """

    name: str
    points: tuple[tuple[float, float], ...]
    last: str
    label: float = 0.0
    number: int = 0


@dataclass(frozen=True)
class SpeedPlot:
    """Step times of one workload over the dates of its runs."""

    workload: str
    series: tuple[Series, ...]
    levels: tuple[tuple[float, str], ...]
    days: tuple[tuple[float, str, str], ...]
    bottom: int = _BOTTOM

    @property
    def height(self) -> int:
        return max(self.bottom + 30, int(max(series.label for series in self.series)) + _LINE)

    @property
    def sentence(self) -> str:
        """Return the newest values in words."""
        return f"{self.workload}: " + ", ".join(f"{series.name} {series.last} ms" for series in self.series)


def speed_plots(columns: Sequence[PageColumn]) -> tuple[SpeedPlot, ...]:
    """Return a plot for each workload with step times, in the order of their names."""
    times: defaultdict[str, dict[str, list[tuple[str, float]]]] = defaultdict(dict)
    for column in columns:
        runs = [(run.run.started, run.steps) for run in column.earlier]
        for started, steps in (*runs, (column.report.run.started, step_medians(column.report))):
            for workload, median in steps.items():
                times[workload].setdefault(column.title, []).append((started, median))
    numbers = {column.title: number for number, column in enumerate(columns)}
    return tuple(_plot(workload, lines, numbers) for workload, lines in sorted(times.items())[:_MOST_PLOTS])


def _plot(workload: str, lines: dict[str, list[tuple[str, float]]], numbers: Mapping[str, int]) -> SpeedPlot:
    # Runs have equal distances: days without a run say nothing.
    dates = sorted({started for line in lines.values() for started, _ in line})
    wide = (_RIGHT - _LEFT) / max(len(dates) - 1, 1)
    places = {date: _LEFT + number * wide for number, date in enumerate(dates)}
    most = _round_up(max((median for line in lines.values() for _, median in line), default=0.0))
    series = []
    for title, line in lines.items():
        points = tuple((round(places[started], 1), _height(median, most)) for started, median in line)
        series.append(Series(title, points, f"{line[-1][1]:.3g}", number=numbers[title]))
    levels = tuple((_height(most * part / 4, most), f"{most * part / 4:.3g}") for part in range(5))
    return SpeedPlot(workload, _labelled(series), levels, _days(dates, places))


def _height(value: float, most: float) -> float:
    return round(_BOTTOM - (_BOTTOM - _TOP) * value / most, 1)


def _round_up(value: float) -> float:
    """Return the next number of the form 1, 2, 4, 6 or 8 times a power of ten, so that the axis has short labels."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next((step * power for step in (1, 2, 4, 6, 8) if value <= step * power), 10 * power)


def _labelled(series: Sequence[Series]) -> tuple[Series, ...]:
    """Return the series with places for their names, from the top, each below the one before."""
    found: list[Series] = []
    for line in sorted(series, key=lambda line: (line.points[-1][1], line.name)):
        lowest = found[-1].label + _LINE if found else 0.0
        found.append(replace(line, label=round(max(line.points[-1][1], lowest), 1)))
    return tuple(found)


def _days(dates: Sequence[str], places: dict[str, float]) -> tuple[tuple[float, str, str], ...]:
    """Return the first and the last date, which never cover each other, and one date for runs of one day."""
    ends = [(dates[0], "start"), (dates[-1], "end")] if dates[0][:10] != dates[-1][:10] else [(dates[0], "start")]
    return tuple((round(places[date], 1), date[:10], anchor) for date, anchor in ends)


def waived_groups(columns: Sequence[PageColumn]) -> tuple[tuple[str, str, int], ...]:
    """Return accelerator, ticket and reason, and number of cases of each group of waived cases."""
    found: Counter[tuple[str, str]] = Counter()
    for column in columns:
        for case in column.report.cases:
            if case.reason is Reason.WAIVED:
                # The message begins with the kind, the ticket and the last day of the waiver.
                found[column.title, one_line(case.message, 200)] += 1
    return tuple((title, words, number) for (title, words), number in sorted(found.items()))
