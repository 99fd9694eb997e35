"""Matrix of a report as values: a row for each area, a column for each dtype and mode, and totals."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from conformance.reports.model import CaseRecord, Fact, Report
from conformance.reports.totals import Counts, count, total
from conformance.reports.verdict import Outcome, Reason

#: Dtypes in the order of the columns. Other names come after them, sorted.
DTYPE_ORDER: Final = (
    "float32",
    "float16",
    "bfloat16",
    "float64",
    "float8_e4m3fn",
    "float8_e5m2",
    "complex64",
    "complex128",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "bool",
)


@dataclass(frozen=True)
class MatrixColumn:
    """Column of the matrix, with the dtypes and modes that it sums up."""

    title: str
    dtypes: frozenset[str | None]
    modes: frozenset[str | None] | None = None

    def holds(self, dtype: str | None, mode: str | None) -> bool:
        return dtype in self.dtypes and (self.modes is None or mode in self.modes)


#: A case of a dtype without a mode says nothing about gradients. It counts as inference.
_FORWARD: Final = frozenset({None, "inference"})
_TRAINING: Final = frozenset({"training"})
_FLOATS: Final = frozenset({"float32", "float16", "bfloat16", "float64", "float8_e4m3fn", "float8_e5m2"})
_SPLIT: Final = (("fp32", "float32"), ("fp16", "float16"), ("bf16", "bfloat16"), ("fp64", "float64"))

_COMPLEX: Final = frozenset({"complex64", "complex128"})
_WHOLE: Final = frozenset({"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"})
_NO_DTYPE: Final = MatrixColumn("–", frozenset({None}))
_SUMMED: Final = (MatrixColumn("cplx", _COMPLEX), MatrixColumn("int\nbool", _WHOLE), _NO_DTYPE)
#: Layouts from the most detailed to the narrowest. A terminal gets the first that fits. One more column sums up the
#: cases that no column holds.
TERMINAL_LAYOUTS: Final = (
    (
        *(
            MatrixColumn(f"{short}\n{letter}", frozenset({dtype}), modes)
            for short, dtype in _SPLIT
            for letter, modes in (("I", _FORWARD), ("T", _TRAINING))
        ),
        MatrixColumn("fp8", frozenset({"float8_e4m3fn", "float8_e5m2"})),
        *_SUMMED,
    ),
    (
        *(MatrixColumn(f"float\n{letter}", _FLOATS, modes) for letter, modes in (("I", _FORWARD), ("T", _TRAINING))),
        *_SUMMED,
    ),
    (
        *(MatrixColumn(f"float\n{letter}", _FLOATS, modes) for letter, modes in (("I", _FORWARD), ("T", _TRAINING))),
        MatrixColumn("int\ncplx", _COMPLEX | _WHOLE),
        _NO_DTYPE,
    ),
)
OTHER: Final = "other"


#: Area, dtype and mode, outcome, reason, and whether the case is about the device.
_Alike = tuple[str, tuple[str | None, str | None], Outcome | None, Reason | None, bool]


@dataclass(frozen=True)
class MatrixRow:
    """Counts of one area by column title. Columns without cases are absent."""

    area: str
    cells: Mapping[str, Counts]
    total: Counts


@dataclass(frozen=True)
class Matrix:
    """Matrix: titles in order, a row for each area, and the row of totals."""

    columns: tuple[str, ...]
    rows: tuple[MatrixRow, ...]
    totals: MatrixRow


@dataclass(frozen=True)
class Difference:
    """Difference between declaration and observation in the cells of one case."""

    reason: Reason
    cell: str
    fails: bool
    message: str


def make_matrix(report: Report, columns: Sequence[MatrixColumn]) -> Matrix:
    """Return the matrix. It counts every planned case once, in its area's row and the first column that holds it."""
    sums: dict[str, dict[str, Counts]] = defaultdict(lambda: defaultdict(Counts))
    for (area, place, outcome, reason, of_device), number in _alike(report).items():
        sums[area][_title(place, columns)] += count(outcome, reason, of_device=of_device).times(number)
    rows = tuple(MatrixRow(area, dict(cells), total(cells.values())) for area, cells in sorted(sums.items()))
    used = {title for row in rows for title in row.cells}
    order = [column.title for column in columns] + [OTHER]
    return Matrix(tuple(title for title in order if title in used), rows, _totals(rows))


def _alike(report: Report) -> Counter[_Alike]:
    """Return how many planned cases share area, dtype, mode, verdict, and whether they are about the device."""
    found: Counter[_Alike] = Counter(
        (case.area, case.dtype_and_mode, case.outcome, case.reason, case.of_device) for case in report.cases
    )
    found.update((case.area, case.dtype_and_mode, None, None, case.of_device) for case in report.accounting.unaccounted)
    return found


def _title(place: tuple[str | None, str | None], columns: Sequence[MatrixColumn]) -> str:
    return next((column.title for column in columns if column.holds(*place)), OTHER)


def _totals(rows: Sequence[MatrixRow]) -> MatrixRow:
    titles = dict.fromkeys(title for row in rows for title in row.cells)
    cells = {title: total(row.cells[title] for row in rows if title in row.cells) for title in titles}
    return MatrixRow("total", cells, total(row.total for row in rows))


def full_columns(report: Report) -> tuple[MatrixColumn, ...]:
    """Return a column for every dtype and mode of the report, in the order of the vocabulary."""
    places = {case.dtype_and_mode for case in chain(report.cases, report.accounting.unaccounted)}
    ordered = sorted(places, key=lambda place: (_rank(place[0]), place[0] or "", place[1] or ""))
    return tuple(MatrixColumn(_name(d, m), frozenset({d}), frozenset({m})) for d, m in ordered)


def _rank(dtype: str | None) -> int:
    if dtype is None:
        return len(DTYPE_ORDER) + 1
    return DTYPE_ORDER.index(dtype) if dtype in DTYPE_ORDER else len(DTYPE_ORDER)


def _name(dtype: str | None, mode: str | None) -> str:
    return " ".join(part for part in (dtype, mode) if part) or "–"


def reason_counts(report: Report) -> tuple[tuple[Outcome, Reason, int], ...]:
    """Return how often each reason occurs, by outcome, the most frequent first."""
    found = Counter((case.outcome, case.reason) for case in report.cases)
    order = list(Outcome)
    rows = sorted(found.items(), key=lambda row: (order.index(row[0][0]), -row[1], row[0][1].value))
    return tuple((outcome, reason, number) for (outcome, reason), number in rows)


def differences(report: Report) -> tuple[Difference, ...]:
    """Return the cases whose verdict contradicts the declaration, failures first, then in the report's order."""
    found = [_difference(case) for case in report.cases if case.reason.facts.contradicts]
    return tuple(sorted(found, key=lambda one: not one.fails))


def _difference(case: CaseRecord) -> Difference:
    return Difference(case.reason, ", ".join(case.requires) or case.id, case.outcome is Outcome.FAIL, case.message)


def failures(report: Report) -> tuple[CaseRecord, ...]:
    """Return the failed cases in the report's order."""
    return tuple(case for case in report.cases if case.outcome is Outcome.FAIL)


@dataclass(frozen=True)
class MetricColumn:
    """Metric of a case, with its title and format for people."""

    metric: str
    title: str
    show: Callable[[float], str]


METRIC_COLUMNS: Final = (
    MetricColumn("tokens_per_s", "tokens/s", "{:,.0f}".format),
    MetricColumn("samples_per_s", "samples/s", "{:,.0f}".format),
    MetricColumn("step_ms_median", "step, ms", "{:,.2f}".format),
    MetricColumn("step_ms_p90", "p90, ms", "{:,.2f}".format),
    MetricColumn("noise_floor", "noise", "{:.0%}".format),
    MetricColumn("matmul_share", "of matmul rate", "{:.1%}".format),
    MetricColumn("peak_memory_bytes", "peak memory, MiB", lambda size: f"{size / 2**20:,.1f}"),
    MetricColumn("process_peak_bytes", "peak of the process, MiB", lambda size: f"{size / 2**20:,.1f}"),
)


def metric_rows(cases: Iterable[CaseRecord]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Return titles and rows of the cases that have one of these metrics. Empty columns are left out."""
    carrying = [case for case in cases if any(column.metric in case.metrics for column in METRIC_COLUMNS)]
    used = [column for column in METRIC_COLUMNS if any(column.metric in case.metrics for case in carrying)]
    rows = tuple((case.id, *(_shown(column, case.metrics.get(column.metric)) for column in used)) for case in carrying)
    return ("workload", *(column.title for column in used)), rows


def _shown(column: MetricColumn, value: Fact | None) -> str:
    if value is None:
        return "–"
    return column.show(value) if isinstance(value, (int, float)) else value
