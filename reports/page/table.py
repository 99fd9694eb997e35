"""The rows of the page: areas, and the subjects in them (an operator, a check, a workload)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from conformance.reports.page.cells import PageCell, make_cell
from conformance.reports.page.columns import PageColumn
from conformance.reports.planned import PlannedCase


@dataclass(frozen=True)
class TableRow:
    """Cases that differ in their axes only. ``name`` is without the area, ``ids`` are sorted by the suite's order."""

    area: str
    name: str
    ids: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """All subjects, by area, and every planned case of any column."""

    subjects: tuple[TableRow, ...]
    planned: dict[str, PlannedCase]

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(id for subject in self.subjects for id in subject.ids)


@dataclass(frozen=True)
class AreaRows:
    """One area as the page shows it without JavaScript: its own cells, then each subject's."""

    name: str
    cells: tuple[PageCell, ...]
    subjects: tuple[tuple[TableRow, tuple[PageCell, ...]], ...]


def make_table(columns: Sequence[PageColumn]) -> Table:
    """Every case that any of the columns has planned, once."""
    planned: dict[str, PlannedCase] = {}
    for column in columns:
        for one in (*column.report.cases, *column.report.accounting.unaccounted):
            planned.setdefault(one.id, one)
    groups: dict[tuple[str, str], list[str]] = {}
    for id, one in planned.items():
        groups.setdefault((one.area, one.subject), []).append(id)
    return Table(tuple(TableRow(*key, tuple(ids)) for key, ids in sorted(groups.items())), planned)


def make_rows(table: Table, columns: Sequence[PageColumn]) -> tuple[AreaRows, ...]:
    areas: dict[str, list[TableRow]] = {}
    for subject in table.subjects:
        areas.setdefault(subject.area, []).append(subject)
    return tuple(_area(name, subjects, columns) for name, subjects in areas.items())


def _area(name: str, subjects: Sequence[TableRow], columns: Sequence[PageColumn]) -> AreaRows:
    ids = [id for subject in subjects for id in subject.ids]
    rows = tuple((subject, _cells(subject.ids, columns)) for subject in subjects)
    return AreaRows(name, _cells(ids, columns), rows)


def _cells(ids: Sequence[str], columns: Sequence[PageColumn]) -> tuple[PageCell, ...]:
    """Of the cases those that each column has planned."""
    return tuple(make_cell(column.endings[id] for id in ids if id in column.endings) for column in columns)
