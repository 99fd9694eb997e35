"""``conformance challenge``: accept correct answers, and reject wrong, missing and malformed answers."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.cli import challenge
from conformance.cli.main import main
from conformance.judging.answers import Answers
from conformance.plan.bundled import suite_version, torch_version
from conformance.reports.challenge import new_nonce, parsed, seed_of_challenge
from conformance.reports.model import CaseRecord, Report
from conformance.reports.report_json import to_json
from tests.acceptance.running import dying
from tests.reports.gate import world
from tests.suites.test_answers import NONCE, SUM, TRAINED, answer, changed

COUNTED, SILENT = "operators.argmax[float32-inference]", "operators.bernoulli[float32-inference]"


def answered(answers: dict[str, str], nonce: str = NONCE) -> Report:
    """Return the report of a run in which these cases passed with these answers."""
    report = world.honest()
    invocation = replace(report.run.invocation, challenge=nonce, seed=seed_of_challenge(nonce))
    suite = replace(report.run.suite, version=suite_version())
    cases = tuple(CaseRecord(id, "operators", metrics={"answer": text}) for id, text in answers.items())
    run = replace(report.run, invocation=invocation, suite=suite)
    return replace(report, run=run, accelerator=replace(report.accelerator, torch=torch_version()), cases=cases)


def _of_suite(version: str) -> Report:
    report = answered({SUM: ""})
    return replace(report, run=replace(report.run, suite=replace(report.run.suite, version=version)))


def _of_torch(version: str) -> Report:
    return replace(answered({SUM: ""}), accelerator=replace(world.honest().accelerator, torch=version))


def challenged(report: Report, folder: Path, *words: str) -> int:
    file = folder / "report.json"
    file.write_text(to_json(report), encoding="utf-8")
    return main(["challenge", str(file), "--nonce", NONCE, *words])


def test_a_nonce_is_printed_and_is_never_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert [main(["challenge"]), main(["challenge"])] == [0, 0]

    first, second = capsys.readouterr().out.split()
    assert re.fullmatch(r"[0-9a-f]{32}", first)
    assert first != second
    assert seed_of_challenge(first) != seed_of_challenge(second)
    assert 0 <= seed_of_challenge(new_nonce()) < 2**62


@pytest.mark.long
def test_wrong_and_missing_answers_are_named_and_right_ones_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    right, trained = answer(COUNTED), answer(TRAINED)
    others = {SUM: changed(answer(SUM), 1.01), COUNTED: right, TRAINED: trained.rsplit(" ", 1)[0], SILENT: ""}

    status = challenged(answered(others), tmp_path)

    *wrong, summary = capsys.readouterr().out.splitlines()
    assert status == 1, wrong
    assert sorted(line.split(": ")[0] for line in wrong) == sorted([SUM, TRAINED])
    assert any("elements differ" in line for line in wrong)
    assert any("does not have the values" in line for line in wrong)
    assert summary == ("4 passing cases recomputed on cpu: 1 correct, 2 wrong, 1 without an answer, 0 cannot run here")


@pytest.mark.parametrize(
    ("report", "status", "sentence"),
    [
        (answered({}, "another-word"), 1, "made with the challenge another-word, not with the required one"),
        (world.honest(), 1, "The run was made without a challenge."),
        (answered({}), 1, "The report has no passing case in the areas that answer a challenge."),
        (answered({"operators.*": ""}), 1, "1 id is not that of a case: operators.*."),
        (answered({"#operators.add": ""}), 1, "1 id is not that of a case: #operators.add."),
        (answered({"operators.invented": "", SUM: ""}), 1, "1 id is not that of a case: operators.invented."),
        (answered({SUM: "0.5"}), 1, f"{SUM}: '0.5' is not an answer to a challenge."),
        (_of_suite("9.9.9"), 1, "Suite version 9.9.9 is not a release: 0.1.0."),
        (_of_torch("1.0.0"), 1, "No release has a plan for torch 1.0."),
        (_of_torch("hello"), 1, "No release has a plan for torch hello."),
        (_of_torch("2.7.1"), 2, "with torch 2.7, but suite"),
    ],
    ids=range(11),
)
def test_what_cannot_be_an_answer_is_said_in_one_sentence(
    report: Report, status: int, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert challenged(report, tmp_path) == status

    captured = capsys.readouterr()
    assert sentence in captured.out + captured.err
    assert len((captured.out + captured.err).splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--nonce", "short"], "expected 8 to 128 letters"),
        (["--nonce", "with spaces in it"], "expected 8 to 128 letters"),
        ([__file__], "name the challenge that the report must answer"),
        (["nowhere.json", "--nonce", NONCE], "there is no nowhere.json"),
        (["--cases", "0"], "expected a positive number or 'all'"),
    ],
)
def test_bad_usage_is_one_sentence(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["challenge", *words]) == 4
    assert sentence in capsys.readouterr().err


def test_a_report_that_cannot_be_read_is_not_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "report.json").write_text(json.dumps({"schema": 1}))

    assert main(["challenge", str(tmp_path / "report.json"), "--nonce", NONCE]) == 2
    assert "cannot judge" in capsys.readouterr().err


def test_a_run_that_dies_before_its_first_case_is_told_in_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dying(monkeypatch, tmp_path)

    assert challenged(answered({SUM: "00000000=1"}), tmp_path) == 2

    captured = capsys.readouterr()
    assert re.search(r"could not be recomputed: .*the plugin is broken", captured.out + captured.err)


def test_answers_are_read_strictly() -> None:
    good = "0123abcd=1.5 0123abce=(1+2j)"

    assert parsed(good) == {"0123abcd": "1.5", "0123abce": "(1+2j)"}
    for bad in ("x", "0123abcd=", "0123abcd=1 0123abcd=2", "0123ABCD=1", f"0123abcd={'9' * 61}", "=".join("ab")):
        with pytest.raises(Exception, match="is not an answer to a challenge"):
            parsed(bad)


@pytest.mark.parametrize(("right", "status"), [(0, 1), (1, 1), (5, 1), (6, 0), (10, 0)])
def test_too_few_answers_are_not_accepted(right: int, status: int, capsys: pytest.CaptureFixture[str]) -> None:
    sample = [CaseRecord(f"operators.c{n}", "operators") for n in range(10)]
    cases = tuple(
        replace(case, metrics={"answer": "0123abcd=1"}) if n < right else case for n, case in enumerate(sample)
    )

    assert challenge._print_result(sample, replace(world.honest(), cases=cases)) == status
    assert ("not accepted" in capsys.readouterr().out) is bool(status)


def test_a_case_without_a_tensor_answers_with_a_small_computation_of_the_device() -> None:
    kept = Answers(NONCE, "accelerator.device.count")
    kept.of_device("cpu")
    name, value = next(iter(kept.values().items()))

    Answers(NONCE, "accelerator.device.count", f"{name}={value}").of_device("cpu")
    with pytest.raises(AssertionError, match="small whole numbers wrongly"):
        Answers(NONCE, "accelerator.device.count", f"{name}={float(value) + 1}").of_device("cpu")
    other = Answers("another-nonce", "accelerator.device.count")
    other.of_device("cpu")
    assert other.values() != kept.values()
    refusing = Answers(NONCE, "accelerator.device.count")
    refusing.of_device("no such device")
    assert refusing.values() == {}
