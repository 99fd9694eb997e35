"""The page as a file: its data, its size, its safety."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from conformance.base.errors import UsageError
from conformance.reports.gate.finding import Decision, reject
from conformance.reports.model import Accounting, CaseRecord, Report
from conformance.reports.page import pictures, publish
from conformance.reports.page.cells import letter_of
from conformance.reports.page.changes import blocked, changes_of
from conformance.reports.page.columns import PublishedReport, ReportOrigin, make_columns
from conformance.reports.page.packing import share
from conformance.reports.page.states import StateLine
from conformance.reports.page.table import make_rows, make_table
from conformance.reports.verdict import Outcome, Reason
from tests.reports.page import many
from tests.reports.page.expanding import data_of

ADD = CaseRecord("operators.add[float32]", "operators", axes={"dtype": "float32"}, metrics={"max_budget_ratio": 0.25})
MUL = CaseRecord(
    "operators.mul", "operators", outcome=Outcome.FAIL, reason=Reason.STUB, message="operators.mul does nothing"
)
SAME_ID = CaseRecord("operators.mul", "operators")


def page(*reports: Report) -> str:
    return publish.files(make_columns(map(PublishedReport, reports)))["index.html"]


def test_the_matrix_is_in_the_html() -> None:
    text = page(many.report("supa", (ADD, MUL)), many.report("npu", (ADD,)))
    rows = re.findall(
        r"<th scope=row(?:group)?>(\w*) <i>(\d+)</i><td(?: class=(\w+))?>(.*?)<td(?: class=(\w+))?>(.*?)\n", text
    )
    assert rows == [
        ("operators", "2", "", "✓ 1", "x3", "✕ 1"),
        ("add", "1", "", "✓ 1", "", "✓ 1"),
        ("mul", "1", "nr", "–<i> not run</i>", "x3", "✕ 1"),
    ]


FOREIGN = (
    CaseRecord("imported.upstream.test_a.TestA.test_x", "imported.upstream.test_a", "imported", about="pytorch"),
    CaseRecord(
        "imported.upstream.test_a.TestA.test_y",
        "imported.upstream.test_a",
        "imported",
        about="pytorch",
        outcome=Outcome.FAIL,
        reason=Reason.WRONG,
        message="1 != 2",
    ),
)


def test_foreign_rows_are_in_the_matrix_and_in_no_percentage() -> None:
    ours, both = many.report("supa", (ADD, MUL)), many.report("supa", (ADD, MUL, *FOREIGN))
    columns = make_columns([PublishedReport(both)])
    rows = make_rows(make_table(columns), columns)

    assert [(row.name, row.cells[0].passed, row.cells[0].failed) for row in rows] == [
        ("operators", 1, 1),
        ("imported.upstream.test_a", 1, 1),
    ]
    assert [[(tile.area, tile.text) for tile in tiles] for tiles in pictures.heat_map(rows)] == [[("operators", "50")]]
    assert both.counts.verified == ours.counts.verified == "1/2 50 %"
    assert both.breadth == ours.breadth
    assert both.profile_text == ours.profile_text
    text = page(both)
    assert FOREIGN[1].id in data_of(text)["ids"]
    heat = text.partition('<table class="heat">')[2].partition("</table>")[0]
    assert "operators" in heat
    assert "imported" not in heat


def test_foreign_rows_fail_in_the_matrix_and_not_in_the_state() -> None:
    text = page(many.report("supa", (ADD, *FOREIGN)))

    assert "No case fails." in text
    assert '<td class="num" data-label="failing">0' in text
    assert "<p>1 cases, checked in both directions" in text


def test_the_script_gets_every_verdict() -> None:
    found = data_of(page(many.report("supa", (ADD, MUL)), many.report("npu", (ADD,))))
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
    assert data_of(page(killed))["columns"][0]["verdicts"].endswith(".")


def test_older_runs_are_history() -> None:
    old = many.report("supa", (ADD, SAME_ID), "2026-01-01T00:00:00+00:00")
    (column,) = make_columns([PublishedReport(many.report("supa", (ADD, MUL))), PublishedReport(old)])
    assert column.report.cases[1] is MUL
    assert [run.letters for run in column.earlier] == [letter_of((Outcome.PASS, Reason.NATIVE)) * 2]
    found = data_of(publish.files([column])["index.html"])
    (before,) = found["columns"][0]["history"]
    assert before["day"] == "2026-01-01"
    assert {found["ids"][int(place)]: found["letters"][old] for place, old in before["changed"].items()} == {
        MUL.id: ["pass", "native"]
    }


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
    timed = replace(ADD, id="workloads.gpt", area="workloads", metrics={"step_ms_median": 3.5, "max_budget_ratio": 2.0})
    reports = [
        many.report("supa", (ADD, timed), day) for day in ("2026-01-01T00:00:00+00:00", "2026-02-01T00:00:00+00:00")
    ]
    for text in (page(many.hostile()), page(many.large("supa", 500, 1), many.large("npu", 500, 2)), page(*reports)):
        found = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
        assert found
        for one in found:
            ElementTree.fromstring(one)


@pytest.mark.long
def test_twenty_thousand_cases_of_nine_accelerators_fit_into_a_megabyte() -> None:
    reports = [many.large(f"accelerator{salt}", 20_000, salt) for salt in range(9)]
    size = len(page(*reports).encode())
    assert size <= 2**20, f"{size:,} bytes"


@pytest.mark.parametrize(
    ("ratio", "letter"),
    [(0.0, "0"), (1e-9, "a"), (0.5, "K"), (0.51, "L"), (1.0, "O"), (1.01, "P"), (float("inf"), "9"), ("text", "-")],
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


def test_the_state_says_who_rejects_and_what_changed() -> None:
    decision = Decision("supa", "full", (reject("G07", "1 case became worse"),), run="r", unchecked=("who made it",))
    judged = {"signer": "ada@supa.example", "decision": decision}
    old = PublishedReport(many.report("supa", (ADD, SAME_ID), "2026-01-01T00:00:00+00:00"), **judged)
    (column,) = make_columns([old, PublishedReport(many.report("supa", (ADD, MUL)), **judged)])
    line = StateLine(column, changes_of(column))
    assert line.gate == ("bad", "✕", "rejected · G07 regressions")
    assert line.since == (("worse", "▼ 1 broke"),)
    assert (line.column.report.profile_text, line.failing) == ("none · 2 of 2 cases claimed", "1")
    assert line.sentences[0] == "G07: 1 case became worse"
    assert "by ada@supa.example" in " ".join(line.sentences)
    assert line.sentences[-1] == "Not checked: who made it."


ACCEPTED = Decision("supa", "full", ())
REJECTED = Decision("supa", "full", (reject("G06", "1 case failed"),))
DAY, LATER = "2026-03-04T05:06:07+00:00", "2026-03-05T05:06:07+00:00"


def _source(started: str, signer: str, decision: Decision | None, profile: str | None = None) -> PublishedReport:
    made = many.report("supa", (ADD,), started)
    return PublishedReport(replace(made, run=replace(made.run, profile=profile)), signer=signer, decision=decision)


@pytest.mark.parametrize(
    ("newer", "titles"),
    [
        (_source(LATER, "", REJECTED), ["supa", "supa (unsigned)"]),
        (_source(LATER, "", None), ["supa", "supa (unsigned)"]),
        (_source(LATER, "eve@x", ACCEPTED), ["supa", "supa (signed by eve@x)"]),
        (_source(LATER, "ada@x", REJECTED), ["supa", "supa (newer, rejected)"]),
        (_source(LATER, "ada@x", ACCEPTED, "core"), ["supa", "supa (profile core)"]),
        (_source(LATER, "ada@x", ACCEPTED), ["supa"]),
    ],
)
def test_a_signed_accepted_report_is_replaced_by_an_accepted_one_of_its_principal_alone(
    newer: PublishedReport, titles: list[str]
) -> None:
    accepted = _source(DAY, "ada@x", ACCEPTED)

    for order in ((accepted, newer), (newer, accepted)):
        first, *others = make_columns(order)
        assert [first.title, *(column.title for column in others)] == titles
        assert first.report.run.started == (LATER if len(titles) == 1 else DAY)


def test_a_rejected_run_that_is_older_is_history() -> None:
    (column,) = make_columns([_source(LATER, "ada@x", ACCEPTED), _source(DAY, "ada@x", REJECTED)])

    assert [run.run.started for run in column.earlier] == [DAY]


def test_runs_are_sorted_by_time_and_not_by_text() -> None:
    red, old = _source("2026-03-04T20:00:00+00:00", "", None), _source("2026-03-05T01:00:00+14:00", "", None)

    (column,) = make_columns([old, red])

    assert column.report.run.started == "2026-03-04T20:00:00+00:00"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (PublishedReport(many.report("supa", (ADD,))), "not gated"),
        (PublishedReport(many.report("supa", (ADD,)), decision=Decision("supa", "full", ())), "unsigned"),
        (PublishedReport(many.report("supa", (ADD,)), signer="a@b", decision=Decision("supa", "full", ())), "accepted"),
        (
            PublishedReport(many.report("supa", (ADD,)), ReportOrigin.UPSTREAM, decision=Decision("supa", "full", ())),
            "accepted",
        ),
    ],
)
def test_the_words_of_the_gate(source: PublishedReport, words: str) -> None:
    (column,) = make_columns([source])
    assert StateLine(column, None).gate[2] == words


def test_changes_are_grouped_by_cause_with_before_and_now() -> None:
    cases = [
        replace(ADD, id=f"operators.add[{dtype}]", axes={"dtype": dtype}) for dtype in ("float32", "float16", "int8")
    ]
    wrong = [
        replace(case, outcome=Outcome.FAIL, reason=Reason.WRONG, message=f"max_ulp {n} > 4")
        for n, case in enumerate(cases[:2])
    ]
    accelerators = [replace(many.report("supa", ()).accelerator, driver=driver) for driver in ("4.1", "4.2")]
    reports = [
        replace(
            many.report("supa", (*rows, MUL if number == 0 else SAME_ID), f"2026-0{number + 1}-01T00:00:00+00:00"),
            accelerator=accelerators[number],
        )
        for number, rows in enumerate(((cases), (*wrong, cases[2])))
    ]
    (column,) = make_columns(map(PublishedReport, reports))
    changes = changes_of(column)
    assert changes is not None
    (broken,), (mended,) = changes.broken, changes.mended
    assert (broken.cause, broken.before, broken.now, broken.dtypes) == (
        "max_ulp 0 > 4",
        "pass",
        "wrong",
        ("float32", "float16"),
    )
    assert [case.id for case in broken.cases] == ["operators.add[float32]", "operators.add[float16]"]
    assert (mended.before, mended.now) == ("stub", "pass")
    assert [(v.name, v.before, v.now) for v in changes.versions if v.differs] == [("driver", "4.1", "4.2")]
    text = publish.files([column])["index.html"]
    assert "<b>4.1 → 4.2</b>" in text
    assert "pass → wrong" in text


def test_the_core_blocks_training_first() -> None:
    core = replace(MUL, id="accelerator.rng.fork", area="accelerator", level="core", reason=Reason.WRONG)
    (column,) = make_columns([PublishedReport(many.report("supa", (ADD, MUL, core)))])
    line = blocked(column)
    assert line.first == "the core: 1 case of accelerator.rng.fork"
    assert "operators.mul does nothing" in line.then
    assert line.failing == 2


def test_the_names_in_a_plot_do_not_cover_each_other() -> None:
    case = replace(ADD, id="workloads.gpt", area="workloads", metrics={"step_ms_median": 3.5})
    (plot,) = pictures.speed_plots(make_columns([PublishedReport(many.report(name, (case,))) for name in "abc"]))
    places = [series.label for series in plot.series]
    assert all(after - before >= 15 for before, after in pairwise(places))
    assert max(places) < plot.height
