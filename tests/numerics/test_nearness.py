"""Nearness to an oracle: what counts, and what is not near."""

from __future__ import annotations

import pytest
import torch

from conformance.judging.checker import Checker
from conformance.numerics.nearness import METRIC, Near, bound_of, near, relative_error

EXACT = torch.tensor([4.0, -1.0, 0.0], dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", list(Near))
def test_a_bound_is_measured_in_roundoffs_of_the_dtype_over_the_largest_element(kind, dtype):
    check, bound = Checker(), bound_of(kind, dtype)
    assert 0 < bound < 0.2

    near(check, "x", EXACT + torch.tensor([0, 0, 3.9 * bound], dtype=torch.float64), EXACT, kind, dtype)
    with pytest.raises(AssertionError, match="off by"):
        near(check, "x", EXACT + torch.tensor([0, 0, 4.1 * bound], dtype=torch.float64), EXACT, kind, dtype)

    assert check.count == 4  # a shape and an error, twice
    assert check.metrics[METRIC] == pytest.approx(0.975, abs=1e-3)


def test_later_comparisons_keep_the_worst():
    check, bound = Checker(), bound_of(Near.SUMS, torch.float64)

    for share in (0.25, 0.5, 0.1):
        near(check, "x", EXACT + 4 * share * bound, EXACT, Near.SUMS)

    assert check.metrics[METRIC] == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_is_not_near(value):
    with pytest.raises(AssertionError, match="off by"):
        near(Checker(), "x", torch.tensor([4.0, value, 0.5]), EXACT, Near.TRAJECTORY)


def test_another_shape_is_not_near():
    with pytest.raises(AssertionError, match="has shape"):
        near(Checker(), "x", EXACT.view(1, 3), EXACT, Near.TRAJECTORY)


def test_differences_that_vanish_are_measured_by_what_they_are_made_of():
    nothing, rounding = torch.zeros(3, dtype=torch.float64), torch.full((3,), 1e-17, dtype=torch.float64)

    near(Checker(), "x", rounding, nothing, Near.SUMS, largest=4.0)
    assert relative_error(rounding, nothing) == pytest.approx(1e-17)
    assert relative_error(torch.zeros(0), torch.zeros(0)) == 0.0
