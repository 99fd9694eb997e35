"""No operator cell lets pass results that are all off by twice what ``torch.testing`` permits, nor such gradients."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch.testing._comparison import default_tolerances

from conformance.numerics.budgets import OpClass
from conformance.numerics.trees import mapped
from conformance.suites.operators.calls import execution
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.calls.classes import op_class
from conformance.suites.operators.calls.database import database
from tests.layers import longer

from .test_operators_detect import planned, run

#: Cells of which no other error than a large one shows, by the reason.
OPEN = {
    "it draws its results": {
        "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "poisson", "rand_like", "randint",
        "randint_like", "randn", "randn_like", "random",
    },
    "its results are memory that nobody wrote": {
        "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided",
    },
    "PyTorch computes it in the dtype of its inputs, in several steps": {
        "grid_sampler_3d", "matrix_exp", "nn.functional.linear_cross_entropy",
        "nn.functional.linear_cross_entropy.chunked", "nn.functional.linear_cross_entropy.chunked_none", "special.ndtr",
    },
    "its terms are larger than the result, or its results are complex but for one": {"nn.functional.ctc_loss", "stft"},
    "few results are exact by chance, and 1.002 is two steps of float16 from 1": {
        "cartesian_prod", "corrcoef", "eye", "new_ones", "ones", "ones_like", "round.decimals_neg_3",
    },
}  # fmt: skip
KNOWN = frozenset().union(*OPEN.values())
#: The same of gradients in bfloat16.
OPEN_GRADIENTS = {
    "it amplifies the roundings of its steps": {
        "asin", "atanh", "erf", "erfc", "erfinv", "sinc", "special.i0e", "special.ndtr",
    },
    "PyTorch computes it in the dtype of its inputs, in several steps": {
        "addcdiv", "matrix_exp", "nn.functional.batch_norm.without_cudnn", "nn.functional.instance_norm",
        "nn.functional.linear_cross_entropy", "nn.functional.linear_cross_entropy.chunked",
        "nn.functional.linear_cross_entropy.chunked_none",
    },
    "few results are exact by chance": {"linalg.norm.subgradients_at_zero", "log_softmax.with_dtype"},
}  # fmt: skip
KNOWN_GRADIENTS = frozenset().union(*OPEN_GRADIENTS.values())


class Inexact:
    """A device whose results are all wrong by a factor. ``changed`` counts the tensors that it changed."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype, self.factor, self.changed = dtype, 1 + 2 * default_tolerances(dtype)[0], 0

    def __call__(self, function: Any, sample: Call, **extra: Any) -> Any:
        return mapped(execution.call(function, sample, **extra), self.scaled)

    def gradients(self, outputs: Any, inputs: Any, cotangents: Any) -> list[Any]:
        found = execution.host_gradients(outputs, inputs, cotangents)
        return [mapped(None if gradient is None else gradient.clone(), self.scaled) for gradient in found]

    def scaled(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.dtype is not self.dtype or leaf.layout is not torch.strided:
            return leaf
        before = leaf.clone()
        try:
            leaf.mul_(self.factor)
        except RuntimeError:
            return leaf  # several elements share memory
        self.changed += not torch.equal(before, leaf)
        return leaf


def unseen(device: Inexact, cells: list[str], share: int) -> set[str]:
    """Return the operators of a share of the cells that pass although the device has changed results."""
    found = set()
    for id in random.Random(share).sample(cells, len(cells) // share):
        operator, device.changed = id.removeprefix("operators.").partition("[")[0], 0
        try:
            run(id)
        except Exception:
            continue  # it is seen, or there is no such cell
        if device.changed:
            found.add(operator)
    return found


def cells_of(axes: str) -> list[str]:
    """Return the operators' cells of a dtype and a mode."""
    return [id for id in planned() if id.startswith("operators.") and id.endswith(f"[{axes}]")]


@pytest.mark.parametrize("share", longer([12, 1]))
@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
def test_twice_the_usual_tolerance_is_wrong(name: str, share: int, monkeypatch: pytest.MonkeyPatch) -> None:
    device = Inexact(getattr(torch, name))
    monkeypatch.setattr(execution, "execute", device)

    found = unseen(device, cells_of(f"{name}-inference"), share)

    # LAPACK has no 16 bits: what the others compute there are sums.
    of_lapack = {each for each in found if op_class(database()[each]) is OpClass.ITERATIVE}
    assert found - KNOWN - (of_lapack if name == "float32" else set()) == set()


@pytest.mark.parametrize("share", longer([6, 1]))
def test_gradients_off_by_twice_the_usual_tolerance_are_wrong(share: int, monkeypatch: pytest.MonkeyPatch) -> None:
    device = Inexact(torch.bfloat16)
    monkeypatch.setattr(execution, "gradients", device.gradients)

    assert unseen(device, cells_of("bfloat16-training"), share) - KNOWN_GRADIENTS == set()
