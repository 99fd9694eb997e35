"""Repro lines: what stands in them comes from checked parts, and never from a text of the report."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conformance.accelerators.registry import resolve
from conformance.base.accelerator_name import is_accelerator_name
from conformance.base.errors import JournalError, UsageError
from conformance.cli.main import main
from conformance.reports.junit_import import area_of, import_junit
from conformance.reports.model import AcceleratorRecord, CaseRecord, Report
from conformance.reports.page.columns import PublishedReport, make_columns
from conformance.reports.page.packing import payload
from conformance.reports.page.table import make_table
from conformance.reports.report_json import from_json
from conformance.reports.repro import repro, repro_line_of
from conformance.reports.verdict import Outcome, Reason, failed
from conformance.reports.views import all_views
from tests.reports.gate import world
from tests.reports.samples import entry, report_of

EVIL = "touch evil"
SPECS = [
    f"supa$({EVIL})",
    f"supa`{EVIL}`",
    f"supa;{EVIL}",
    f"supa' {EVIL} '",
    f"supa\n{EVIL}",
    f"supa && {EVIL}",
    "supa|sh",
    "supa>x",
    "-p evil",
    "--rootdir=x",
    "@arguments",
    "/home/alice/x:Supa",
    "../x:Supa",
    "module:",
    ":Object",
    "a:b:c",
    "a..b:C",
    "s\u0443pa",
    "su\u200bpa",
    "supa\x1b[2J",
    " supa",
    "s" * 201,
]
NAMES = ["supa", "auto", "vendor-one", "torch_supa:Supa", "a.b.c:D.e", "deepspeed:CPU", "torch:privateuseone", "_x"]


def with_spec(spec: str) -> dict[str, Any]:
    value = world.plain(world.honest())
    value["accelerator"]["spec"] = spec
    return value


@pytest.mark.parametrize("name", NAMES)
def test_names_entry_points_and_objects_are_accelerators(name: str) -> None:
    assert is_accelerator_name(name)
    assert from_json(with_spec(name)).accelerator.spec == name
    assert repro({"spec": name}, "a.b") == f"pytest --accelerator={name} --case a.b -n0"


@pytest.mark.parametrize("spec", SPECS)
def test_any_other_text_is_refused_by_the_command_line_the_reader_the_gate_and_the_journal(
    spec: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "report.json").write_text(json.dumps(with_spec(spec)))

    if spec == spec.strip():
        with pytest.raises(UsageError, match="names no accelerator"):
            resolve(spec)
    with pytest.raises(JournalError, match=r"accelerator\.spec must be a name"):
        from_json(with_spec(spec))
    assert main(["gate", str(tmp_path / "report.json"), "--profile=core"]) == 2
    said = capsys.readouterr().err
    assert "accelerator.spec must be" in said
    assert said.rstrip("\n").isprintable()
    with pytest.raises(JournalError, match="the journal names the accelerator"):
        report_of(tmp_path / "run", (entry("a.b"), failed(Reason.WRONG, "no")), spec=spec)
    assert repro({"spec": spec}, "a.b") == ""


IDS = ["a.b[float32]", "a.b['$(touch evil)']", "a.b;touch evil", 'a."b', "a.`touch evil`", "a.b|sh", "a.$& $1", "é.b"]


@pytest.mark.parametrize("id", IDS)
def test_a_case_id_is_one_word_of_the_shell(id: str, tmp_path: Path) -> None:
    line = repro({"spec": "supa", "seed": 3}, id)

    assert shlex.split(line) == ["pytest", "--accelerator=supa", "--case", id, "-n0", "--conformance-seed=3"]
    shown = subprocess.run(
        ["sh", "-c", line.replace("pytest", "printf '%s\\n'", 1)],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert shown.stdout.splitlines()[2] == id
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("id", ["", "-p", "--rootdir=/", "@file", "a\nb", "a\x1b[2J", "a\u202eb", "a" * 1001, " a"])
def test_an_id_that_pytest_would_read_otherwise_has_no_line(id: str) -> None:
    assert repro({"spec": "supa"}, id) == ""


def test_values_that_this_suite_does_not_write_leave_their_options_out() -> None:
    header = {
        "spec": "supa",
        "paths": ["-pevil", "@file", "mine.py"],
        "argv": ["--capabilities", "@file", "--capabilities=-x", "--capabilities=x$(touch evil).toml"],
        "seed": "$(touch evil)",
        "strictness": "ci; touch evil",
        "rank_isolation": ["fork"],
    }

    line = "pytest mine.py --accelerator=supa --case a.b -n0 '--capabilities=x$(touch evil).toml'"
    assert repro(header, "a.b") == line


def evil_report() -> Report:
    """A report whose every text calls itself a repro line."""
    value = world.plain(world.honest())
    value["cases"][0].update(
        outcome="fail",
        reason="wrong",
        repro=f"pytest $({EVIL})",
        message=f"no\nrepro: {EVIL}\n  \u200bRepro : {EVIL}\n`repro: {EVIL}`",
        axes={"repro": EVIL, "Repro": EVIL},
    )
    return from_json(value)


@pytest.mark.parametrize("view", all_views(), ids=lambda view: view.name)
def test_no_view_shows_a_repro_text_of_a_report(view: Any) -> None:
    report = evil_report()

    shown = view.render(report, 200)

    assert f"$({EVIL})" not in shown
    assert f"repro: {EVIL}" not in shown.casefold()
    assert f"repro : {EVIL}" not in shown.casefold()
    expected = "pytest --accelerator=acme --case accelerator.device -n0"
    assert report.cases[0].repro == expected
    if view.name in ("text", "junit"):
        assert f"repro: {expected}" in shown


def test_explain_shows_its_own_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    value = world.plain(evil_report())
    value["cases"][0]["repro"] = f"pytest $({EVIL})"
    (tmp_path / "report.json").write_text(json.dumps(value))

    assert main(["explain", "accelerator.device", "--report", str(tmp_path)]) == 0

    shown = capsys.readouterr().out
    assert [line.strip() for line in shown.splitlines() if line.strip().startswith("repro")] == [
        "repro: pytest --accelerator=acme --case accelerator.device -n0"
    ]


def test_an_imported_junit_file_brings_no_repro_line(tmp_path: Path) -> None:
    path = tmp_path / "junit.xml"
    path.write_text(
        f"<testsuite><testcase name='a'><failure>no\nrepro: {EVIL}</failure></testcase></testsuite>", encoding="utf-8"
    )

    (case,) = import_junit(path, area_of("x"), "supa").cases

    assert EVIL not in case.message
    assert case.repro == ""


def test_a_line_that_is_read_is_the_line_that_was_written(tmp_path: Path) -> None:
    argv = ["mine.py", "--capabilities=claims.toml", "--rank-isolation=fork"]
    report = report_of(
        tmp_path, (entry("a.b[it's]"), failed(Reason.WRONG, "no")),
        argv=argv, paths=["mine.py"], rank_isolation="fork", strictness="certify",
    )  # fmt: skip

    assert repro_line_of(report).of("a.b[it's]") == report.cases[0].repro
    assert "pytest mine.py --accelerator=supa --case 'a.b[it'\"'\"'s]' -n0" in report.cases[0].repro


# --- the page -------------------------------------------------------------------------------------------------------


def page_data(report: Report) -> Any:
    columns = make_columns([PublishedReport(report)])
    return payload(make_table(columns), columns)


def test_the_page_gets_checked_parts_and_the_cases_that_have_no_line() -> None:
    cases = tuple(
        CaseRecord(id, "a", outcome=Outcome.FAIL, reason=Reason.WRONG) for id in ("a.b['$&']", "@a", "a.\u202e")
    )
    report = replace(world.honest(), cases=cases)

    data = page_data(report)

    assert data["columns"][0]["repro"] == ["pytest --accelerator=acme --case ", " -n0"]
    assert {data["ids"][place] for place in data["unrepeatable"]} == {"@a", "a.\u202e"}
    odd = replace(report, accelerator=AcceleratorRecord(f"x$({EVIL})", spec=f"x$({EVIL})"))
    assert page_data(odd)["columns"][0]["repro"] == []


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node")
def test_the_pages_script_quotes_as_python_does() -> None:
    script = (Path(__file__).parents[2] / "reports/page/templates/dialog.js").read_text(encoding="utf-8")
    body = script[script.index("function shellQuoted") :]
    function = body[: body.index("\n}") + 2]
    program = f"{function}; console.log(JSON.stringify({json.dumps(IDS)}.map(shellQuoted)))"

    done = subprocess.run(["node", "-e", program], capture_output=True, text=True, check=True)

    assert [shlex.split(word) for word in json.loads(done.stdout)] == [[id] for id in IDS]
