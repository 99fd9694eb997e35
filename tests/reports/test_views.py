"""Views against golden files; ``UPDATE_GOLDEN=1 pytest tests/reports/test_views.py`` rewrites them."""

from __future__ import annotations

import os
from pathlib import Path

import junitparser
import pytest

from conformance.base.errors import UnknownName
from conformance.reports.loading import load
from conformance.reports.model import Report
from conformance.reports.report_json import from_json
from conformance.reports.verdict import Reason, failed, passed, skipped
from conformance.reports.views import find_view, junit, markdown, view_names
from conformance.reports.views import text as terminal
from tests.reports.samples import entry, report_of, sample_report

GOLDEN = Path(__file__).parent / "golden"
HOSTILE = '\x1b[31m<b>|\x00 ]]> \ud800 `x` & "q"\u202e'


@pytest.fixture
def report(tmp_path: Path) -> Report:
    return sample_report(tmp_path)


@pytest.mark.parametrize(
    ("name", "file"),
    [("text", "matrix.txt"), ("markdown", "matrix.md"), ("junit", "junit.xml"), ("json", "report.json")],
)
def test_the_view_is_as_it_was(report: Report, name: str, file: str) -> None:
    text = find_view(name).render(report, 120)

    if os.environ.get("UPDATE_GOLDEN"):
        (GOLDEN / file).write_text(text, encoding="utf-8")
    assert text == (GOLDEN / file).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", view_names())
def test_the_same_run_gives_the_same_bytes(tmp_path: Path, name: str) -> None:
    first, second = sample_report(tmp_path / "a"), sample_report(tmp_path / "b")

    assert find_view(name).render(first, 120) == find_view(name).render(second, 120)


def test_an_unknown_view_is_named_with_a_suggestion() -> None:
    with pytest.raises(UnknownName, match="did you mean 'markdown'"):
        find_view("mrkdown")


@pytest.mark.parametrize("width", [120, 80])
def test_the_terminal_matrix_fits(tmp_path: Path, width: int) -> None:
    dtypes = ("float32", "float16", "bfloat16", "float64", "complex64", "int8", "float8_e5m2")
    cells = [entry("operators.add", dtype=d, mode=m) for d in dtypes for m in ("inference", "training")]

    table = terminal.matrix_table(report_of(tmp_path, *[(one, passed()) for one in cells]), width)

    assert max(map(len, table.splitlines())) <= width


def test_the_published_runs_fit_a_terminal() -> None:
    runs = [load(path) for path in (Path(__file__).parents[2] / "reports/published/runs").glob("*.json.gz")]

    for width in (80, 100, 120, 200):
        wide = [line for run in runs for line in terminal.render(run, width).splitlines() if len(line) > width]
        assert wide == [], f"{width} columns"
    assert runs


def test_causes_beyond_the_limit_are_counted(tmp_path: Path) -> None:
    cases = [(entry(f"a.case{i}"), failed(Reason.WRONG, "no" * (i + 1))) for i in range(5)]

    text = terminal.body(report_of(tmp_path, *cases), causes_shown=2)

    assert text.count("repro:") == 2
    assert "5 cases failed:" in text
    assert "… and 3 cases of 3 other causes: wrong 3" in text


@pytest.mark.parametrize("width", [80, 100, 200])
def test_hundreds_of_failures_fit_on_two_screens(width: int, tmp_path: Path) -> None:
    """In the worst case: 24 areas, all with three lines in the matrix, and a cause for each failure."""
    areas = [f"area{i}" for i in range(24)]
    cases = [
        *((entry(f"{area}.pass"), passed()) for area in areas),
        *((entry(f"{area}.skip"), skipped(Reason.ENVIRONMENT, "no package")) for area in areas),
        *(
            (entry(f"{area}.fail{i}"), failed(Reason.WRONG, f"{'very ' * (i + 1)}wrong"))
            for area in areas
            for i in range(17)
        ),
    ]

    text = terminal.render(report_of(tmp_path, *cases), width)

    lines = text.splitlines()
    assert "408 cases failed, for 17 causes:" in text
    assert len(lines) <= 2 * 60
    assert [line for line in lines if len(line) > width and "repro:" not in line] == []
    assert text.index("cases failed") < text.index("\ntotal ") < text.index("planned 456, accounted 456")


def test_a_long_message_is_shortened_and_says_by_how_much(tmp_path: Path) -> None:
    message = "\n".join(f"line {i}" for i in range(10))

    text = terminal.render(report_of(tmp_path, (entry("a.b"), failed(Reason.WRONG, message))))

    assert text.count("line ") == 6
    assert "… 4 more lines in report.json" in text


def test_a_markdown_page_stays_small_enough_for_a_summary(tmp_path: Path) -> None:
    cases = [(entry(f"a.case{i}"), failed(Reason.OVER_DECLARED, "x" * 3000)) for i in range(3000)]

    text = markdown.render(report_of(tmp_path, *cases))

    assert len(text.encode()) < 900 * 1024
    assert text.count("… and 2800 more") == 2


def test_a_repro_line_is_never_cut(tmp_path: Path) -> None:
    id = "a." + "long" * 60

    text = terminal.render(report_of(tmp_path, (entry(id), failed(Reason.WRONG, "no"))), width=60)

    assert f"--case {id} -n0 " in text


def hostile_report() -> Report:
    """A report as somebody else may have written it: folding, which cleans texts, has not seen it."""
    case = {
        "id": f"a|{HOSTILE}.c",
        "area": HOSTILE,
        "axes": {f"dtype{HOSTILE}": HOSTILE},
        "requires": [HOSTILE],
        "outcome": "fail",
        "reason": "over-declared",
        "message": HOSTILE + "\n" + HOSTILE,
        "metrics": {HOSTILE: HOSTILE, "tokens_per_s": HOSTILE},
        "repro": HOSTILE,
    }
    suite = {"version": HOSTILE, "manifest_sha256": HOSTILE, "cases": 2}
    value = {
        "schema": 1,
        "run": {"id": HOSTILE, "started": HOSTILE, "suite": suite, "strictness": HOSTILE},
        "accelerator": {"name": HOSTILE, "torch": HOSTILE},
        "accounting": {
            "unaccounted": [{"id": HOSTILE, "area": HOSTILE}],
            "duplicates": [HOSTILE],
            "unknown": [HOSTILE],
        },
        "notes": [HOSTILE],
        "cases": [case, {**case, "id": "b.c", "area": "b"}],
    }
    return from_json(value)


def test_nothing_from_a_report_reaches_the_terminal_raw() -> None:
    text = terminal.render(hostile_report())

    assert [c for c in text if not c.isprintable() and c != "\n"] == []


def test_markdown_rows_keep_their_columns() -> None:
    text = markdown.render(hostile_report())

    assert "<b>" not in text
    assert [c for c in text if not c.isprintable() and c != "\n"] == []
    for table in (block.splitlines() for block in text.split("\n\n") if block.startswith("| ")):
        assert len({line.replace("\\|", "").count("|") for line in table}) == 1


def test_junit_is_valid_whatever_the_messages_hold() -> None:
    text = junit.render(hostile_report())

    _, suite = junitparser.JUnitXml.fromstring(text.encode())
    (case,) = suite
    assert case.result[0].type == "over-declared"
    assert "<b>" in case.result[0].text
    assert "\x1b" not in text


def test_junit_says_outcome_reason_and_numbers(report: Report) -> None:
    document = junitparser.JUnitXml.fromstring(junit.render(report).encode())

    assert (document.tests, document.failures, document.skipped, document.errors) == (12, 2, 4, 2)
    cases = {case.name: case for suite in document for case in suite}
    facts = cases["operators.add[float32-inference]"].system_out.splitlines()
    assert {"outcome: pass", "reason: native", "dtype: float32", "metric.max_ulp: 1.5"} <= set(facts)
    assert cases["profiling.late"].result[0].type == "unaccounted"
