"""conformance explain: a case, its requirements, and its verdict in a report."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.cli.main import main
from conformance.plan.case import seed_of
from conformance.reports.verdict import passed
from tests.cli.bundled import use_stand_ins
from tests.reports.samples import entry, write_run, write_sample

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    use_stand_ins(monkeypatch)


def explained(capsys: Captured, *words: str) -> str:
    assert main(["explain", *words]) == 0
    return capsys.readouterr().out


def test_a_case_is_explained_from_the_suite(capsys: Captured) -> None:
    shown = explained(capsys, "accelerator.rng.state_roundtrip")

    assert "Restoring a saved state repeats the same numbers." in shown
    assert "needs rng.state\n" in shown
    assert f"seed {seed_of('accelerator.rng.state_roundtrip')} (base seed 0) · deadline 60 s" in shown
    assert "source conformance/suites/x/test_it.py:12" in shown
    assert "profiles inference, training, distributed, full" in shown


def test_a_report_adds_the_verdict_its_numbers_and_the_command(tmp_path: Path, capsys: Captured) -> None:
    write_sample(tmp_path)

    failed = explained(capsys, "operators.add[float32-training]", "--report", str(tmp_path))
    numbers = explained(capsys, "operators.add[float32-inference]", "--report", str(tmp_path))

    assert "fail (wrong) on supa in 0.25 s\n    max_ulp 12 > budget 4\n    at [3, 7]" in failed
    assert "repro: pytest --accelerator=supa --case 'operators.add[float32-training]'" in failed
    assert "(base seed 7)" in failed
    assert "max_ulp = 1.5" in numbers


def test_a_case_without_a_verdict_says_whether_it_began(tmp_path: Path, capsys: Captured) -> None:
    write_sample(tmp_path)

    assert "it started and did not finish" in explained(capsys, "profiling.trace", "--report", str(tmp_path))
    assert "it did not start" in explained(capsys, "profiling.late", "--report", str(tmp_path))


def test_a_vendors_own_case_is_explained_from_the_report_alone(tmp_path: Path, capsys: Captured) -> None:
    write_run(tmp_path, [(entry("mine.special"), passed())])

    assert "pass (native) on supa" in explained(capsys, "mine.special", "--report", str(tmp_path))


@pytest.mark.parametrize(
    ("id", "sentence"),
    [
        ("accelerator.rng.state_roundtrp", "did you mean 'accelerator.rng.state_roundtrip'"),
        ("operatros.add", "area 'operatros' is not registered"),
        ("operators.add", "did you mean 'operators.add["),
        ("profiling.nothing", "case 'profiling.nothing' is not registered"),
        ("", "case, reason or rule '' is not registered"),
        ("L99", "did you mean 'L09'"),
        ("stbu", "did you mean 'stub'"),
    ],
)
def test_an_unknown_case_comes_with_suggestions(capsys: Captured, id: str, sentence: str) -> None:
    assert main(["explain", id]) == 4
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("L05", ["L05 error of conformance lint", "a member does nothing, but has to do something"]),
        ("l15", ["L15 note of conformance lint", "docs/declarations.md#lint"]),
        ("G03", ["G03 rule of conformance gate", "hash of the run's plan", "  do: Run the released suite"]),
        ("over-declared", ["reason of a fail or skip", "declared supported, but it is not implemented", "  do: "]),
    ],
)
def test_rules_and_reasons_are_explained(capsys: Captured, name: str, words: list[str]) -> None:
    shown = explained(capsys, name)

    for word in words:
        assert word in shown


def test_a_report_adds_the_cases_of_a_reason(tmp_path: Path, capsys: Captured) -> None:
    write_sample(tmp_path)

    shown = explained(capsys, "wrong", "--report", str(tmp_path))

    assert "wrong reason of a fail" in shown
    assert "cases of supa with this reason: operators.add[float32-training]" in shown
    assert "cases of supa with this reason: none" in explained(capsys, "hang", "--report", str(tmp_path))
    assert "with this reason" not in explained(capsys, "G03", "--report", str(tmp_path))


def test_a_broken_report_is_one_sentence(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "report.json").write_text("{")

    assert main(["explain", "operators.add", "--report", str(tmp_path)]) == 2
    assert "is not valid JSON" in capsys.readouterr().err
