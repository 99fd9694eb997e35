"""conformance waivers check, prune and add."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from conformance.cli.main import main
from conformance.reports.model import Report
from conformance.reports.report_json import to_json
from conformance.reports.verdict import Outcome, Reason
from conformance.reports.waivers.file import read_waivers
from conformance.reports.waivers.model import Waiver
from tests.reports.gate import world

Captured = pytest.CaptureFixture[str]
ADD, MUL = "operators.add[float32-training]", "operators.mul[float32-training]"


def waiver(*cases: str, days: int = 30) -> Waiver:
    return replace(world.waiver(*cases), expires=datetime.now(timezone.utc).date() + timedelta(days=days))


def failing(*ids: str) -> Report:
    report = world.honest()
    for id in ids:
        report = world.with_case(report, id, outcome=Outcome.FAIL, reason=Reason.WRONG)
    return report


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """Return a file with four waivers and a report that needs the first completely and the second in part."""
    waivers = [waiver(ADD), waiver("operators.m*[float32-*]"), waiver("operators.gone"), waiver("accelerator.stream")]
    (tmp_path / "w.toml").write_text("# mine\n\n" + world.toml(*waivers))
    (tmp_path / "report.json").write_text(to_json(failing(ADD, MUL)))
    return str(tmp_path / "w.toml"), str(tmp_path / "report.json")


def test_check_says_what_is_stale(files: tuple[str, str], capsys: Captured) -> None:
    assert main(["waivers", "check", files[0]]) == 0
    assert "4 waivers, no problem found" in capsys.readouterr().out

    assert main(["waivers", "check", files[0], "--report", files[1]]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "line 12: operators.mul[float32-inference] passes, but it is waived as wrong",
        "line 30: accelerator.stream passes, but it is waived as wrong",
        "line 21: the waiver of operators.gone (wrong) matches no claimed case",
    ]


def test_check_says_what_is_wrong_by_itself(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "w.toml"
    path.write_text(world.toml(waiver(ADD, days=-1), waiver(MUL, days=181), replace(waiver("x"), owner="")))

    assert main(["waivers", "check", str(path)]) == 1

    said = capsys.readouterr().out
    assert [word in said for word in ("expired on", "more than 180 days ahead", "has no owner")] == [True] * 3


def test_prune_takes_out_what_is_not_needed_and_nothing_else(files: tuple[str, str], capsys: Captured) -> None:
    before = Path(files[0]).read_text()

    assert main(["waivers", "prune", files[0], "--report", files[1], "--dry-run"]) == 0
    assert Path(files[0]).read_text() == before
    assert main(["waivers", "prune", files[0], "--report", files[1]]) == 0

    said = capsys.readouterr().out
    assert [waiver.cases for waiver in read_waivers(Path(files[0]))] == [(ADD,), ("operators.m*[float32-*]",)]
    assert Path(files[0]).read_text().startswith("# mine\n\n[[waiver]]")
    assert "operators.mul[float32-inference] passes, but other cases still need its waiver" in said


def test_prune_does_not_trust_a_partial_run(files: tuple[str, str], capsys: Captured) -> None:
    report = failing(ADD, MUL)
    invocation = replace(report.run.invocation, selection=("--area",))
    Path(files[1]).write_text(to_json(replace(report, run=replace(report.run, invocation=invocation))))

    assert main(["waivers", "prune", files[0], "--report", files[1]]) == 4
    assert "partial run" in capsys.readouterr().err


ADDING = ["--kind=bug", "--ticket=T-1", "--reason=rounds", "--owner=ada"]


def test_add_makes_a_file_and_adds_to_it(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "new" / "w.toml"
    path.parent.mkdir()

    assert main(["waivers", "add", str(path), ADD, "--verdict=wrong", *ADDING]) == 0
    assert main(["waivers", "add", str(path), MUL, "x.*", "--verdict=crash", *ADDING, "--device=A*"]) == 0

    first, second = read_waivers(path)
    assert (first.cases, first.verdict) == ((ADD,), Reason.WRONG)
    assert (second.cases, second.verdict, second.device) == ((MUL, "x.*"), Reason.CRASH, "A*")
    assert main(["waivers", "check", str(path)]) == 0
    assert capsys.readouterr().out.startswith('[[waiver]]\ncases = ["operators.add[float32-training]"]\n')


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--verdict=rong"], "did you mean 'wrong'"),
        (["--verdict=wrong", "--kind=sad"], "kind 'sad' is not registered"),
        (["--verdict=wrong", "--expires=soon"], "expected a date such as 2026-12-31"),
        (["--verdict=wrong", "--expires=2020-01-01"], "expired on 2020-01-01"),
        (["--verdict=wrong", "--expires=2999-01-01"], "more than 180 days ahead"),
        (["--verdict=wrong", "--owner= "], "has no owner"),
        (["--verdict=core-missing"], "verdict 'core-missing' is not registered"),
    ],
)
def test_add_refuses_what_the_gate_would(tmp_path: Path, capsys: Captured, words: list[str], sentence: str) -> None:
    assert main(["waivers", "add", str(tmp_path / "w.toml"), ADD, *ADDING, *words]) == 4
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "w.toml").exists()
