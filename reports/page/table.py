"""Rows of the page: areas, and the subjects in them (an operator, a check, a workload)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from conformance.reports.junit_import import is_foreign
from conformance.reports.page.cells import PageCell, make_cell
from conformance.reports.page.columns import PageColumn
from conformance.reports.planned import PlannedCase


@dataclass(frozen=True)
class TableRow:
    """Row of cases that differ only in their axes. ``name`` is without the area; ``ids`` have the suite's order."""

    area: str
    name: str
    ids: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """Table of all rows by area, and every planned case of any column."""

    subjects: tuple[TableRow, ...]
    planned: dict[str, PlannedCase]

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(id for subject in self.subjects for id in subject.ids)

    @property
    def own(self) -> int:
        """Return the number of cases that are this suite's."""
        return sum(len(subject.ids) for subject in self.subjects if not is_foreign(subject.area))


@dataclass(frozen=True)
class AreaRows:
    """Rows of one area, as the page shows them without JavaScript: its own cells, then those of each subject."""

    name: str
    number: int
    cells: tuple[PageCell, ...]
    subjects: tuple[tuple[TableRow, tuple[PageCell, ...]], ...]


def make_table(columns: Sequence[PageColumn]) -> Table:
    """Return the table of all cases that any column has planned."""
    planned: dict[str, PlannedCase] = {}
    for column in columns:
        for case in (*column.report.cases, *column.report.accounting.unaccounted):
            if case.id in column.endings:
                planned.setdefault(case.id, case)
    groups: dict[tuple[str, str], list[str]] = {}
    for id, case in planned.items():
        name = f"{case.subject} ({case.about_note})" if case.about_note else case.subject
        groups.setdefault((case.area, name), []).append(id)
    # The rows of other suites stand behind this suite's.
    ordered = sorted(groups.items(), key=lambda group: (is_foreign(group[0][0]), group[0]))
    return Table(tuple(TableRow(*key, tuple(ids)) for key, ids in ordered), planned)


def make_rows(table: Table, columns: Sequence[PageColumn]) -> tuple[AreaRows, ...]:
    """Return the rows of the table, grouped by area in the order of the table's subjects."""
    areas: dict[str, list[TableRow]] = {}
    for subject in table.subjects:
        areas.setdefault(subject.area, []).append(subject)
    return tuple(_area(name, subjects, columns) for name, subjects in areas.items())


def _area(name: str, subjects: Sequence[TableRow], columns: Sequence[PageColumn]) -> AreaRows:
    ids = [id for subject in subjects for id in subject.ids]
    rows = tuple((subject, _cells(subject.ids, columns)) for subject in subjects)
    return AreaRows(name, len(ids), _cells(ids, columns), rows)


def _cells(ids: Sequence[str], columns: Sequence[PageColumn]) -> tuple[PageCell, ...]:
    """Return a cell for each column, of those of the cases that the column has planned."""
    return tuple(_cell([id for id in ids if id in column.endings], column) for column in columns)


def _cell(ids: Sequence[str], column: PageColumn) -> PageCell:
    return make_cell([column.endings[id] for id in ids], core=any(id in column.core_failures for id in ids))
