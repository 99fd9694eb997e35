"""The matrix counts every planned case once."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.reports.matrix import (
    OTHER,
    TERMINAL_LAYOUTS,
    MatrixColumn,
    differences,
    full_columns,
    make_matrix,
    reason_counts,
)
from conformance.reports.totals import Counts
from conformance.reports.verdict import Outcome, Reason, passed
from tests.reports.samples import entry, report_of, sample_report


@pytest.mark.parametrize("columns", [*TERMINAL_LAYOUTS, ()])
def test_every_planned_case_is_counted_once(tmp_path: Path, columns: tuple[MatrixColumn, ...]) -> None:
    report = sample_report(tmp_path)

    matrix = make_matrix(report, columns)

    assert matrix.totals.total == report.counts
    assert sum(c.planned for row in matrix.rows for c in row.cells.values()) == 12
    assert set(matrix.columns) == {title for row in matrix.rows for title in row.cells}


def test_a_cell_counts_its_outcomes(tmp_path: Path) -> None:
    matrix = make_matrix(sample_report(tmp_path), TERMINAL_LAYOUTS[0])

    (operators,) = [row for row in matrix.rows if row.area == "operators"]
    assert operators.cells["fp32\nI"] == Counts(passed=1, claimed=1)
    assert operators.cells["fp32\nT"] == Counts(failed=1, claimed=1)
    assert operators.cells["cplx"] == Counts(skipped=1)


def test_a_dtype_that_no_column_holds_is_not_lost(tmp_path: Path) -> None:
    matrix = make_matrix(report_of(tmp_path, (entry("a.b", dtype="float4"), passed())), TERMINAL_LAYOUTS[0])

    assert matrix.columns == (OTHER,)


def test_full_columns_are_in_the_order_of_the_vocabulary(tmp_path: Path) -> None:
    titles = [column.title for column in full_columns(sample_report(tmp_path))]

    expected = ["float32 inference", "float32 training", "bfloat16 training", "float64 inference"]
    assert titles == [*expected, "complex64 inference", "int8", "–"]


def test_reasons_are_counted_by_outcome(tmp_path: Path) -> None:
    counts = reason_counts(sample_report(tmp_path))

    assert counts[0] == (Outcome.PASS, Reason.NATIVE, 3)
    assert sum(number for _, _, number in counts) == 10
    assert [outcome for outcome, _, _ in counts] == sorted((o for o, _, _ in counts), key=list(Outcome).index)


def test_differences_are_failures_first(tmp_path: Path) -> None:
    found = differences(sample_report(tmp_path))

    assert [(one.reason, one.fails) for one in found] == [(Reason.OVER_DECLARED, True), (Reason.UNDER_DECLARED, False)]
