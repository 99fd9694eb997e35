"""Two reports, case by case."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.cli.main import main
from conformance.reports.diff import CaseChange, Change, ReportDiff, as_json, as_markdown, compare, text
from conformance.reports.model import DeclaredCell, Report
from conformance.reports.report_json import to_json
from conformance.reports.verdict import Outcome, Reason
from tests.reports.gate.world import PLAN, honest, with_case

ADD, MUL, STREAM = "operators.add[float32-training]", "operators.mul[float32-training]", "accelerator.stream"


def changed() -> Report:
    """As many passes as before: one case broke, and another works now."""
    report = with_case(honest("new"), ADD, outcome=Outcome.FAIL, reason=Reason.WRONG)
    report = with_case(report, "accelerator.graph", outcome=Outcome.PASS, reason=Reason.NATIVE)
    report = with_case(report, "operators.eig[float32-training]", reason=Reason.UNDECLARED)
    cases = [one for one in report.cases if one.id != STREAM] + [replace(report.cases[0], id="new.case")]
    cells = [one for one in report.declaration.cells if one.cell != "stream"] + [DeclaredCell("<b>", "supported")]
    return replace(report, cases=tuple(cases), declaration=replace(report.declaration, cells=tuple(cells)))


def test_equal_counts_do_not_hide_what_changed() -> None:
    before = honest("old")

    found = compare(before, changed())

    assert before.counts.passed == changed().counts.passed
    assert [(one.change, one.id, one.before, one.now) for one in found.cases] == [
        (Change.WORSE, ADD, "pass (native)", "fail (wrong)"),
        (Change.BETTER, "accelerator.graph", "skip (unsupported)", "pass (native)"),
        (Change.OTHER, "operators.eig[float32-training]", "skip (unsupported)", "skip (undeclared)"),
        (Change.GONE, STREAM, "pass (native)", ""),
        (Change.NEW, "new.case", "", "pass (native)"),
    ]
    assert [(one.cell, one.before, one.now) for one in found.claims] == [
        ("<b>", "", "supported"),
        ("stream", "supported (native)", ""),
    ]
    assert found.same == len(PLAN) - 4


def test_views() -> None:
    found = compare(honest("old"), changed())

    assert f"worse     {ADD}: pass (native) → fail (wrong)\n" in text(found)
    assert text(found).endswith("1 worse, 1 better, 1 otherwise, 1 gone, 1 new, 8 the same, 2 claims changed\n")
    assert json.loads(as_json(found))["cases"][0]["change"] == "worse"
    assert "| claim | &lt;b&gt; | – | supported |" in as_markdown(found)


def test_cases_that_changed_alike_are_one_line_and_new_failures_come_first() -> None:
    def change(id: str, now: str, kind: Change = Change.WORSE) -> CaseChange:
        return CaseChange(id, kind, "pass (native)", now)

    found = ReportDiff(
        "a", "b", same=7, claims=(),
        cases=(
            change("a.new", "pass (native)", Change.NEW),
            change("comm.all_reduce[2]", "", Change.GONE),
            *(change(f"operators.add[{n}]", "skip (undeclared)") for n in range(3)),
            change("operators.zeta[0]", "fail (wrong)"),
        ),
    )  # fmt: skip

    assert text(found).splitlines()[2:] == [
        "worse     operators.zeta[0]: pass (native) → fail (wrong)",
        "worse     operators.add (3 cases, such as operators.add[0]): pass (native) → skip (undeclared)",
        "gone      comm.all_reduce[2]: pass (native) → –",
        "new       a.new: pass (native) → pass (native)",
        "4 worse, 1 gone, 1 new, 7 the same, 0 claims changed",
    ]


def test_nothing_became_worse_is_said() -> None:
    assert text(compare(honest("old"), honest("old"))).endswith("\n0 worse, 12 the same, 0 claims changed\n")


def test_the_command_ends_as_diff_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, report in (("a", honest("old")), ("b", changed())):
        (tmp_path / f"{name}.json").write_text(to_json(report))
    a, b = str(tmp_path / "a.json"), str(tmp_path / "b.json")

    assert main(["diff", a, a]) == 0
    assert capsys.readouterr().out.endswith("12 the same, 0 claims changed\n")
    assert main(["diff", a, b, "--format=json"]) == 1
    assert json.loads(capsys.readouterr().out)["differs"] is True
    assert main(["diff", a, str(tmp_path / "c.json")]) == 4
