"""The page as a file: its data, its size, its safety."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from conformance.errors import UsageError
from conformance.reports.model import Accounting, CaseRecord, Report
from conformance.reports.page import pictures, publish
from conformance.reports.page.columns import PublishedReport, ReportOrigin, make_columns
from conformance.reports.page.packing import share
from conformance.reports.verdict import Outcome, Reason
from tests.reports.page import many

ADD = CaseRecord("operators.add[float32]", "operators", axes={"dtype": "float32"}, metrics={"max_budget_ratio": 0.25})
MUL = CaseRecord(
    "operators.mul", "operators", outcome=Outcome.FAIL, reason=Reason.STUB, message="operators.mul does nothing"
)
SAME_ID = CaseRecord("operators.mul", "operators")


def page(*reports: Report) -> str:
    return publish.files(make_columns(map(PublishedReport, reports)))["index.html"]


def data(text: str) -> dict[str, Any]:
    packed = re.search(r'<script type="text/plain" id="data">([^<]*)</script>', text)
    assert packed
    value: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(packed.group(1))))
    return value


def test_the_matrix_is_in_the_html() -> None:
    text = page(many.report("supa", (ADD, MUL)), many.report("npu", (ADD,)))
    rows = re.findall(r"<th scope=row(?:group)?>([^<]*)<td class=(\w+)>([^<]*)<td class=(\w+)>([^<\n]*)\n", text)
    assert rows == [
        ("operators", "full", "● 1", "fail", "✕ 1/2"),
        ("add", "full", "● 1", "full", "● 1"),
        ("mul", "nodata", "–", "fail", "✕ 1/1"),
    ]


def test_the_script_gets_every_verdict() -> None:
    found = data(page(many.report("supa", (ADD, MUL)), many.report("npu", (ADD,))))
    endings = {
        column["name"]: [found["letters"].get(letter) for letter in column["verdicts"]] for column in found["columns"]
    }
    assert found["ids"] == [ADD.id, MUL.id]
    assert endings == {"npu": [["pass", "native"], None], "supa": [["pass", "native"], ["fail", "stub"]]}
    supa = found["columns"][1]
    assert supa["messages"][supa["message"][1]] == "\x01 does nothing"


def test_a_case_without_verdict_is_no_absent_case() -> None:
    whole = many.report("supa", (ADD, MUL))
    killed = Report(whole.run, whole.accelerator, accounting=Accounting((many.planned(MUL),)), cases=(ADD,))
    assert data(page(killed))["columns"][0]["verdicts"].endswith(".")


def test_older_runs_are_history() -> None:
    old = many.report("supa", (ADD, SAME_ID), "2026-01-01T00:00:00+00:00")
    (column,) = make_columns([PublishedReport(many.report("supa", (ADD, MUL))), PublishedReport(old)])
    assert column.report.cases[1] is MUL
    assert pictures.sparkline(column) == "0.0,0.0 96.0,10.0"
    found = data(publish.files([column])["index.html"])
    assert [found["letters"][letter][0] for letter in found["columns"][0]["before"]] == ["pass", "pass"]


def test_runs_by_the_maintainers_are_a_column_of_their_own() -> None:
    run = many.report("supa", (ADD,))
    columns = make_columns([PublishedReport(run), PublishedReport(run, ReportOrigin.UPSTREAM)])
    assert [column.title for column in columns] == ["supa (upstream)", "supa"]


def test_the_same_reports_give_the_same_bytes() -> None:
    reports = [PublishedReport(many.large(name, 200, salt)) for salt, name in enumerate(("supa", "npu"))]
    assert publish.files(make_columns(reports)) == publish.files(make_columns(reversed(reports)))


def test_markup_in_a_report_stays_text() -> None:
    text = publish.files(make_columns([PublishedReport(many.hostile())]))
    page_text = text["index.html"]
    assert page_text.count("<script") == 2
    assert "<img" not in page_text
    assert "\u202e" not in page_text
    assert "onerror" not in re.sub(r"&lt;.*?&gt;", "", page_text)
    assert "&lt;/script&gt;" in page_text
    json.loads(text["matrix.json"])


def test_only_our_own_script_and_style_may_run() -> None:
    text = page(many.report("supa", (ADD,)))
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy
    for tag in ("style", "script"):
        inside = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside[0].encode()).digest()).decode()
        assert len(inside) == 1
        assert f"{tag}-src &#39;sha256-{digest}&#39;" in policy.group(1)
    assert "default-src &#39;none&#39;" in policy.group(1)
    assert not re.search(r"""\son\w+=|style=|(?:src|href)=["'](?!#)""", text)


def test_the_pictures_are_well_formed() -> None:
    for text in (page(many.hostile()), page(many.large("supa", 500, 1), many.large("npu", 500, 2))):
        found = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
        assert found
        for one in found:
            ElementTree.fromstring(one)


def test_twenty_thousand_cases_of_nine_accelerators_fit_into_a_megabyte() -> None:
    reports = [many.large(f"accelerator{salt}", 20_000, salt) for salt in range(9)]
    size = len(page(*reports).encode())
    assert size <= 2**20, f"{size:,} bytes"


@pytest.mark.parametrize(
    ("ratio", "letter"),
    [(0.0, "0"), (1e-9, "a"), (0.5, "j"), (0.51, "k"), (1.0, "k"), (1.5, "l"), (float("inf"), "z"), ("text", "-")],
)
def test_the_share_of_the_budget_is_rounded_up(ratio: Any, letter: str) -> None:
    assert share(CaseRecord("a.b", "a", metrics={"max_budget_ratio": ratio})) == letter


def test_errors_are_counted_by_powers_of_two() -> None:
    ratios = (0.0, 2**-20, 0.5, 0.6, 1.0, 3.0, 1e9)
    cases = [CaseRecord(f"a.{r}", "a", axes={"dtype": "int8"}, metrics={"max_budget_ratio": r}) for r in ratios]
    (strip,) = pictures.error_strips(cases)
    assert (strip.cases, strip.exact, strip.worst) == (7, 1, 1e9)
    assert strip.bins == (1, 0, 0, 0, 0, 0, 0, 0, 1, 2, 0, 1, 1)


def test_nothing_to_publish(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no report to publish"):
        publish.publish([], tmp_path)
