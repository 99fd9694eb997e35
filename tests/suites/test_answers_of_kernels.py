"""Answers of kernel cases to a challenge: computed on new numbers, and judged by the kernel's own budget."""

from __future__ import annotations

import pytest
import torch

from conformance.judging.answers import Answers
from conformance.judging.checker import Checker
from conformance.kernels.specification import ErrorBudget, Expected
from conformance.plan.case import Case
from conformance.suites.ops import execution
from conformance.suites.ops.judging import KernelJudge

from .test_answers import NONCE, changed

VALUE = torch.linspace(0.5, 2.0, 101)


def answered(actual: torch.Tensor, claimed: str | None = None, who: str = "the builder") -> str:
    """Judge a kernel's result under the challenge; return its answer."""
    check = Checker(Answers(NONCE, "ops.kernel", claimed))
    expected = Expected(VALUE.double() if actual.is_floating_point() else VALUE.to(actual.dtype))
    KernelJudge(check, ErrorBudget(4.0, 4.0, "a few roundings"), who).tensor("result", actual, expected)
    check.answer()
    return str(check.metrics["answer"])


def test_another_implementation_of_the_kernel_gives_the_same_places() -> None:
    text = answered(VALUE)

    assert answered(VALUE * (1 + 2**-23), text, "the portable reference").split("=")[0] == text.split("=")[0]


def test_a_claimed_value_is_judged_in_place_of_the_computed_one() -> None:
    text = answered(VALUE)

    assert answered(VALUE, changed(text, 1 + 2**-23))
    with pytest.raises(AssertionError, match="1/101 elements are wrong"):
        answered(VALUE, changed(text, 1.001))
    with pytest.raises(AssertionError, match="does not have the values that it asks for"):
        answered(VALUE, "0123abcd=1.5")


def test_whole_numbers_are_compared_exactly() -> None:
    whole = VALUE.to(torch.int32)
    text = answered(whole)

    assert answered(whole, text) == text
    name, _, value = text.partition("=")
    with pytest.raises(AssertionError, match="1/101 elements differ"):
        answered(whole, f"{name}={int(value) + 1}")


def test_a_challenge_makes_the_arguments_of_a_kernel_new() -> None:
    case = Case("ops.kernel", "ops")
    seeds = [execution._seed(case, check) for check in (None, Checker(), Checker(Answers(NONCE, case.id)))]

    assert seeds[0] == seeds[1] != seeds[2]
    assert seeds[2] != execution._seed(case, Checker(Answers("another-nonce", case.id)))
