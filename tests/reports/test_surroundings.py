"""The table of surroundings at which bits change, from a report: as text, and on the page."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from conformance.base.errors import UsageError
from conformance.cli import invariance
from conformance.reports.model import CaseRecord
from conformance.reports.page import publish
from conformance.reports.page.columns import PublishedReport, make_columns
from conformance.reports.report_json import to_json
from conformance.reports.surroundings import surroundings_tables, table_lines
from conformance.reports.verdict import Outcome, Reason
from tests.reports.page import many


def case(kind: str, dtype: str = "float32", world: str = "", **sizes: int) -> CaseRecord:
    metrics = {"operators": 79, "changed": len(sizes), **{f"smallest.{name}": size for name, size in sizes.items()}}
    axes = {"dtype": dtype, **({"world": world} if world else {})}
    return CaseRecord(
        f"invariance.{kind}[{'-'.join(axes.values())}]", "invariance", axes=axes, adaptive=True, outcome=Outcome.SKIP,
        reason=Reason.UNSUPPORTED, message="bits change", metrics=metrics,
    )  # fmt: skip


CASES = (case("batch", mv=9, linear=2), case("stride", gelu=1), case("rank", world="2"), case("rank", world="4", mv=4),
         case("batch", "bfloat16"), CaseRecord("invariance.run[float32]", "invariance", axes={"dtype": "float32"}),
         CaseRecord("operators.add", "operators", metrics={"operators": 3, "smallest.add": 1}))  # fmt: skip


def test_each_dtype_has_a_table_of_what_was_measured() -> None:
    narrow, wide = surroundings_tables(CASES)

    assert table_lines(narrow) == ["operator     batch", "79 of 79 operators: the same bits in every surrounding"]
    assert table_lines(wide) == [
        "operator     batch      rank    stride",
        "gelu             ·         ·         1",
        "linear           2         ·         ·",
        "mv               9         4         ·",
        "76 of 79 operators: the same bits in every surrounding",
    ]


def test_the_smallest_of_several_cases_of_a_kind_is_shown() -> None:
    (table,) = surroundings_tables([case("rank", world="4", mv=4), case("rank", world="2", mv=2)])

    assert table.rows == (("mv", ("2",)),)


def test_numbers_that_are_none_are_left_out() -> None:
    hostile = CaseRecord(
        "invariance.batch[x]", "invariance", axes={"dtype": "x"}, metrics={"operators": "many", "smallest.mv": "9"}
    )

    (table,) = surroundings_tables([hostile])
    assert (table.rows, table.unchanged) == ((), 0)


def test_the_page_shows_the_table_of_each_report_that_has_one() -> None:
    reports = [many.report("supa", CASES), many.report("npu", (CaseRecord("operators.add", "operators"),))]
    text = publish.files(make_columns(map(PublishedReport, reports)))["index.html"]

    found = re.findall(r"Surroundings at which bits change: (\w+), (\w+)", text)
    assert found == [("supa", "float32")]
    (row,) = re.findall(r"<th scope=row>mv(<td.*?)\n", text)
    # The names of the columns are for narrow screens, which do not show what is the same.
    assert re.findall(r'(?:data-label="(\w+)"|class=same)>([^<\n]*)', row) == [("batch", "9"), ("rank", "4"), ("", "·")]
    assert "76 of 79 operators" in text
    without = publish.files(make_columns([PublishedReport(reports[1])]))["index.html"]
    assert "Surroundings at which" not in without


def test_the_command_prints_the_table_of_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report.json"
    path.write_text(to_json(many.report("supa", CASES)))
    parser = argparse.ArgumentParser()
    invariance.add_arguments(parser)

    assert invariance.run(parser.parse_args(["--report", str(path)])) == 0
    assert "mv               9         4         ·" in capsys.readouterr().out


def test_a_report_without_measured_cases_says_what_to_run(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(to_json(many.report("supa", CASES[-1:])))

    with pytest.raises(UsageError, match="--area=invariance"):
        invariance.run(argparse.Namespace(report=path))
