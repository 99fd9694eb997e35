"""Answers to a challenge: they are judged by the case's own budget, and nothing else passes for one."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
import torch

from conformance.judging.answers import Answers
from conformance.judging.checker import Checker
from conformance.plan.case import seed_of
from conformance.reports.challenge import VALUES, parsed, seed_of_challenge
from conformance.suites.operators import cell
from conformance.suites.operators.calls import execution

from .test_operators_detect import CPU, planned

NONCE = "a-word-of-today"
SUM, TRAINED, COUNTED = "operators.sum[float32-inference]", "operators.mul[float32-training]", "operators.argmax"
CASES = (SUM, TRAINED, f"{COUNTED}[float32-inference]", "operators.abs[complex64-inference]")
RANDOM = (
    "operators.nn.functional.alpha_dropout[float32-training]",
    "operators.nn.functional.dropout[float32-inference]",
    "operators.nn.functional.dropout[float32-training]",
    "operators.bernoulli[float32-inference]",
)


def answer(case: str, claimed: str | None = None) -> str:
    """The body of a case under the challenge; what it answers."""
    seed = seed_of(case, seed_of_challenge(NONCE))
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    check = Checker(Answers(NONCE, case, claimed))
    cell.run(planned()[case], CPU, check)
    return str(check.metrics.get("answer", ""))


def changed(text: str, factor: float) -> str:
    """The answer with its first value multiplied."""
    (name, value), *others = parsed(text).items()
    return " ".join(f"{n}={v}" for n, v in [(name, repr(float(value) * factor)), *others])


@pytest.mark.parametrize("case", CASES)
def test_the_same_case_answers_the_same_and_its_answer_is_right(case: str) -> None:
    text = answer(case)

    assert len(parsed(text)) == VALUES
    assert answer(case, text) == text


def test_another_rounding_is_as_right_as_for_the_device() -> None:
    text = answer(SUM)

    assert answer(SUM, changed(text, 1 + 2**-24)) != ""
    with pytest.raises(AssertionError, match="elements differ"):
        answer(SUM, changed(text, 1.001))


@pytest.mark.parametrize("case", CASES[:3])
def test_an_answer_of_another_challenge_or_none_at_all_is_wrong(case: str) -> None:
    text = answer(case)
    others = " ".join(f"{number:08x}=1" for number in range(VALUES))

    with pytest.raises(AssertionError, match="does not have the values"):
        answer(case, "")
    with pytest.raises(AssertionError, match="does not have the values"):
        answer(case, " ".join(text.split()[1:]))
    with pytest.raises(AssertionError, match="does not have the values"):
        answer(case, others)


def test_a_value_that_the_dtype_cannot_have_is_wrong() -> None:
    name = next(iter(parsed(answer(CASES[2]))))
    rest = answer(CASES[2]).split()[1:]

    for value in ("1.5", "9" * 50, "(1+2j)", "x"):
        with pytest.raises(AssertionError, match=r"where a value of torch\.int64 is expected"):
            answer(CASES[2], " ".join([f"{name}={value}", *rest]))


@pytest.mark.parametrize("case", RANDOM)
def test_what_depends_on_drawn_numbers_is_not_asked(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = answer(case)
    honest, reseeding, calls = execution.execute, execution.reseed, itertools.count(1)

    def reseeding_elsewhere(seed, device):
        """A seed starts the device's numbers again."""
        nonlocal calls
        calls = itertools.count(1)
        reseeding(seed, device)

    def drawing_from_elsewhere(function, sample, **extra):
        """A device with a generator of its own draws other numbers, and leaves the host's alone."""
        with torch.random.fork_rng(devices=()):
            torch.default_generator.manual_seed(torch.initial_seed() + 1000 * next(calls))
            return honest(function, sample, **extra)

    monkeypatch.setattr(execution, "reseed", reseeding_elsewhere)
    monkeypatch.setattr(execution, "execute", drawing_from_elsewhere)

    assert answer(case) == text
