"""Report as Markdown, for a pull request or a job summary. Everything from the report is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from conformance.reports.breadth import KERNEL_ORIGINS
from conformance.reports.matrix import (
    Matrix,
    MatrixRow,
    differences,
    failures,
    full_columns,
    make_matrix,
    metric_rows,
    reason_counts,
)
from conformance.reports.model import CaseRecord, Report
from conformance.reports.plain_text import markdown, one_line
from conformance.reports.totals import Counts

SUMMARY = "Markdown"
FILE = "matrix.md"

#: Rows of a table. A comment on GitHub holds 65,536 characters.
MAX_ROWS: Final = 200
MAX_MESSAGE: Final = 300


def render(report: Report, _width: int = 0) -> str:
    """Return the whole page, with a line end at its end."""
    sections = (
        _title(report),
        matrix(report),
        kernels(report),
        reasons(report),
        _workloads(report),
        _differences(report),
        _failures(failures(report)),
        _accounting(report),
    )
    return "\n\n".join(section for section in sections if section) + "\n"


def _title(report: Report) -> str:
    """Return the heading, with versions, hash and counts of the run."""
    run, counts = report.run, report.counts
    facts = (
        f"torch {markdown(report.accelerator.torch or '?')}",
        f"suite {markdown(run.suite.version or '?')}",
        f"manifest {markdown(run.suite.manifest_sha256[:12] or '?')}",
        f"strictness {markdown(run.strictness)}",
        f"profile {report.profile_text}",
    )
    sums = f"Planned {counts.planned}, accounted {counts.planned - counts.lost}, verified {counts.verified}."
    if counts.aside:
        sums += f" {counts.aside} passed cases are not about the device and count in no percentage."
    return f"# Conformance of {markdown(report.accelerator.name)}\n\n{' · '.join(facts)}\n\n{sums}"


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]], numbers: int = 0) -> str:
    """Return a table of escaped cells. The last ``numbers`` columns are aligned right."""
    rules = ["---"] * (len(titles) - numbers) + ["--:"] * numbers
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (titles, rules, *rows))


def matrix(report: Report) -> str:
    """Return the matrix: a row for each area, a column for each dtype and mode."""
    return _matrix(make_matrix(report, full_columns(report)))


def _matrix(matrix: Matrix) -> str:
    titles = ["area", *map(markdown, matrix.columns), "total", "verified"]
    rows = [_row(row, matrix.columns) for row in (*matrix.rows, matrix.totals)]
    return _table(titles, rows, len(titles) - 1) + "\n\nCells: pass / skip / fail, and how many have no verdict."


def _row(row: MatrixRow, columns: Sequence[str]) -> list[str]:
    cells = [_cell(row.cells.get(title)) for title in columns]
    return [markdown(row.area), *cells, _cell(row.total), row.total.verified]


def _cell(counts: Counts | None) -> str:
    """Return passed, skipped and failed counts, and the lost ones where there are any."""
    if counts is None:
        return ""
    lost = f" ({counts.lost} lost)" if counts.lost else ""
    return f"{counts.passed} / {counts.skipped} / {counts.failed}{lost}"


def kernels(report: Report) -> str:
    """Return whose kernels ran in the passed cases of each area, with a heading; nothing if no area has kernels."""
    rows = [
        (markdown(area), *(str(counts[origin]) for origin in KERNEL_ORIGINS))
        for area, counts in report.kernel_origins.items()
    ]
    return f"## Kernels\n\n{_table(('area', *KERNEL_ORIGINS), rows, len(KERNEL_ORIGINS))}" if rows else ""


def reasons(report: Report) -> str:
    """Return how often each reason occurs, with a heading; nothing for a report without cases."""
    rows = [(outcome.value, reason.value, str(number)) for outcome, reason, number in reason_counts(report)]
    return f"## Reasons\n\n{_table(('outcome', 'reason', 'cases'), rows, 1)}" if rows else ""


def _workloads(report: Report) -> str:
    titles, rows = metric_rows(report.cases)
    clean = [[markdown(one_line(value, 120)) for value in row] for row in rows]
    return f"## Workloads\n\n{_table(titles, clean, len(titles) - 1)}" if rows else ""


def _differences(report: Report) -> str:
    """Return the section of claims that the run contradicts, or nothing. Long tables are cut."""
    found = differences(report)
    rows = [
        (
            "fail" if difference.fails else "note",
            difference.reason.value,
            markdown(difference.cell),
            markdown(one_line(difference.message, MAX_MESSAGE)),
        )
        for difference in found[:MAX_ROWS]
    ]
    table = _table(("counts as", "reason", "cell", "seen"), rows)
    return f"## Declared and observed differ\n\n{table}{_more(len(found))}" if rows else ""


def _failures(failed: Sequence[CaseRecord]) -> str:
    rows = [list(_failure(case)) for case in failed[:MAX_ROWS]]
    table = _table(("case", "reason", "message", "repro"), rows)
    return f"## Failures\n\n{table}{_more(len(failed))}" if rows else ""


def _failure(case: CaseRecord) -> Iterator[str]:
    """Yield the columns of a failure: id, reason, message and the command that repeats it."""
    yield markdown(case.id)
    yield case.reason.value
    yield markdown(one_line(case.message, MAX_MESSAGE))
    yield markdown(case.repro)


def _accounting(report: Report) -> str:
    """Return the lists of cases that lack a verdict or were not planned, and the notes."""
    accounting = report.accounting
    lists = (
        ("Planned without a verdict", [planned.id for planned in accounting.unaccounted]),
        ("More than one verdict", accounting.duplicates),
        ("Verdicts of unplanned cases", accounting.unknown),
        ("Areas with claims where nothing ran", report.idle_areas),
        ("Notes", report.notes),
    )
    return "\n\n".join(_bullets(title, ids) for title, ids in lists if ids)


def _bullets(title: str, ids: Sequence[str]) -> str:
    lines = [f"- {markdown(one_line(id, MAX_MESSAGE))}" for id in ids[:MAX_ROWS]]
    return f"## {title}: {len(ids)}\n\n" + "\n".join(lines) + _more(len(ids))


def _more(number: int) -> str:
    return f"\n\n… and {number - MAX_ROWS} more; all are in report.json." if number > MAX_ROWS else ""
