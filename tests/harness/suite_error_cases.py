"""Cases whose failures have different origins. Run by test_suite_error.py."""

import pytest

torch = pytest.importorskip("torch")

from conformance.numerics.compare import same_bits  # noqa: E402
from conformance.plan.case import case  # noqa: E402


@case("origin.suite")
def test_suite(accelerator):
    """Hands the suite's own comparison what it cannot compare."""
    assert same_bits(torch.ones(2), None)


@case("origin.rank", world_size=2)
def test_rank(rank):
    """Does the same on ranks."""
    assert same_bits(torch.ones(2), None)


@case("origin.torch")
def test_torch(accelerator):
    """Lets torch's own code assert something."""
    torch._check_is_size(3)
    from torch._prims_common import validate_strides

    validate_strides((-1,))


@case("origin.comparison")
def test_comparison(accelerator):
    """Uses torch's assertions as the case's own check."""
    torch.testing.assert_close(torch.ones(2), torch.zeros(2))


@case("origin.device")
def test_device(accelerator):
    """Asks torch for what it refuses."""
    torch.ones(2) @ torch.ones(3)


@case("origin.answer")
def test_answer(accelerator):
    """Reads an answer that is not there."""
    {"there": 1}["missing"]


@case("origin.right")
def test_right(accelerator):
    """Passes."""
