"""Smallest surroundings at which bits change, as the cases of area invariance report them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from conformance.reports.model import CaseRecord

AREA: Final = "invariance"
#: Beginning of the metrics that give the size for an operator, such as ``smallest.mv``; and the count of operators.
SMALLEST, OPERATORS = "smallest.", "operators"


@dataclass(frozen=True)
class SurroundingsTable:
    """Table of one dtype: a row for each operator that changes, and a column for each kind of surrounding.

    A cell is the smallest size at which the bits change, or a dot. ``unchanged`` operators change nowhere.
    """

    dtype: str
    kinds: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    unchanged: int


def surroundings_tables(cases: Iterable[CaseRecord]) -> tuple[SurroundingsTable, ...]:
    """Return a table for each dtype that has measured cases, by name."""
    measured: defaultdict[str, list[CaseRecord]] = defaultdict(list)
    for case in cases:
        if case.area == AREA and OPERATORS in case.metrics:
            measured[str(case.axes.get("dtype", ""))].append(case)
    return tuple(_table(dtype, found) for dtype, found in sorted(measured.items()))


def _table(dtype: str, cases: Sequence[CaseRecord]) -> SurroundingsTable:
    kinds = tuple(dict.fromkeys(_kind(case) for case in sorted(cases, key=lambda case: case.id)))
    sizes: dict[tuple[str, str], float] = {}
    for case in cases:
        for name, size in case.metrics.items():
            if name.startswith(SMALLEST) and isinstance(size, int | float):
                key = (name.removeprefix(SMALLEST), _kind(case))
                sizes[key] = min(size, sizes.get(key, size))
    names = sorted({operator for operator, _ in sizes})
    rows = tuple((name, tuple(_shown(sizes.get((name, kind))) for kind in kinds)) for name in names)
    counts = [value for case in cases if isinstance(value := case.metrics[OPERATORS], int | float)]
    return SurroundingsTable(dtype, kinds, rows, max(0, int(max(counts, default=0)) - len(names)))


def _kind(case: CaseRecord) -> str:
    return case.id.removeprefix(f"{AREA}.").partition("[")[0]


def _shown(size: float | None) -> str:
    return "·" if size is None else f"{size:g}" if isinstance(size, float) else str(size)


def table_lines(table: SurroundingsTable) -> list[str]:
    """Return the lines of a table as text."""
    width = max(map(len, ("operator", *(name for name, _ in table.rows))))
    return [
        f"{'operator':<{width}}" + "".join(f"{kind:>10}" for kind in table.kinds),
        *(f"{name:<{width}}" + "".join(f"{cell:>10}" for cell in cells) for name, cells in table.rows),
        sentence(table),
    ]


def sentence(table: SurroundingsTable) -> str:
    """Return how many operators keep their bits."""
    return f"{table.unchanged} of {table.unchanged + len(table.rows)} operators: the same bits in every surrounding"
