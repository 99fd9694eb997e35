"""Answers of cases that compare by the checker or by ``near``: results of two devices stay out of them."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch

from conformance.cli.main import main
from conformance.judging.answers import Answers
from conformance.judging.checker import Checker
from conformance.numerics.nearness import Near, near
from conformance.reports.challenge import parsed, written
from conformance.suites.modules.checking import check_module
from tests.acceptance.running import run

NONCE, CASE = "a-word-of-today", "area.case"
#: A NaN with a payload, which no text of a float can say.
NAN = torch.tensor([struct.unpack("<i", bytes.fromhex("0100c07f"))[0]], dtype=torch.int32).view(torch.float32)
#: Cases on ranks, cases that compare bits, and one that compares within a bound.
CASES = ("comm.broadcast[float32-1-2]", "accelerator.dtype.copy[float16]", "moe.gating[1-1-random]")


def answer(tensor: torch.Tensor, expected: torch.Tensor, claimed: str | None = None, how: str = "equal") -> str:
    check = Checker(Answers(NONCE, CASE, claimed))
    getattr(check, how)(tensor, expected, "the result")
    check.answer()
    return str(check.metrics.get("answer", ""))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6.0).view(2, 3).t(),
        torch.tensor([True, False]),
        torch.tensor(3, dtype=torch.int64),
        torch.tensor([1 + 2j, 3j], dtype=torch.complex128).conj(),
        torch.ones(3).to(torch.float8_e4m3fn),
        NAN,
    ],
    ids=str,
)
def test_equal_tensors_answer_and_the_answer_is_judged_bit_for_bit(tensor: torch.Tensor) -> None:
    text = answer(tensor, tensor.clone())

    ((place, value),) = parsed(text).items()
    assert answer(tensor, tensor.clone(), text) == text
    with pytest.raises(AssertionError, match=r"is not|a value of"):
        answer(tensor, tensor.clone(), f"{place}={int(value) ^ 1}")
    with pytest.raises(AssertionError, match="does not have the values"):
        answer(tensor, tensor.clone(), "")


def test_two_results_of_the_device_answer_nothing() -> None:
    check, ones = Checker(Answers(NONCE, CASE)), torch.ones(3)

    check.agree(ones, ones.clone(), "two runs")
    near(check, "by the device", ones, ones.double(), Near.SUMS, by_device=True)
    check.answer()

    assert "answer" not in check.metrics
    assert answer(ones, ones, how="agree") == ""


def test_a_near_result_answers_within_its_bound() -> None:
    def judged(claimed: str | None) -> str:
        check = Checker(Answers(NONCE, CASE, claimed))
        near(check, "a sum", torch.full((4,), 1.5), torch.full((4,), 1.5, dtype=torch.float64), Near.SUMS)
        check.answer()
        return str(check.metrics["answer"])

    ((place, value),) = parsed(judged(None)).items()

    assert value == "1.5"
    assert judged(f"{place}=1.5000001") == f"{place}=1.5", "one rounding away is right"
    with pytest.raises(AssertionError, match="is off by"):
        judged(f"{place}=1.6")


@pytest.mark.long
def test_cases_on_ranks_answer_and_a_changed_value_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "cases.txt").write_text("\n".join(CASES), encoding="utf-8")
    words = ("--accelerator=cpu", f"--challenge={NONCE}", f"--case-file={tmp_path / 'cases.txt'}", "-n0")
    file = run(*words, cwd=tmp_path).folder / "report.json"

    assert main(["challenge", str(file), "--nonce", NONCE, "--cases", "all"]) == 0
    assert capsys.readouterr().out.endswith(f"{len(CASES)} correct, 0 wrong, 0 without an answer, 0 cannot run here\n")

    report = json.loads(file.read_text(encoding="utf-8"))
    (broadcast,) = [case for case in report["cases"] if case["id"] == CASES[0]]
    first, *others = broadcast["metrics"]["answer"].split()
    place, value = first.split("=")
    broadcast["metrics"]["answer"] = " ".join([f"{place}={int(value) ^ 1}", *others])
    file.write_text(json.dumps(report), encoding="utf-8")
    assert main(["challenge", str(file), "--nonce", NONCE, "--cases", "all"]) == 1
    assert f"{CASES[0]}: rank " in capsys.readouterr().out


def test_a_module_answers_within_its_bound() -> None:
    def judged(claimed: str | None) -> str:
        check = Checker(Answers(NONCE, CASE, claimed))
        torch.manual_seed(0)  # as before each case
        check_module(check, "Linear", torch.device("cpu"), torch.float32, training=False)
        check.answer()
        return str(check.metrics["answer"])

    found = judged(None)
    (place, value), *rest = parsed(found).items()

    assert judged(found) == found
    with pytest.raises(AssertionError, match="is off by"):
        judged(written({**dict(rest), place: repr(float(value) + 1)}))
