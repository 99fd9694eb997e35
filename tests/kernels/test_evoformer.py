"""Evoformer attention: its oracle is what autograd derives in float64, and its bounds are not wide."""

from __future__ import annotations

import math

import pytest
import torch

from conformance.base.errors import UsageError
from conformance.kernels.builders import find_builder
from conformance.kernels.specifications import specification
from conformance.kernels.specifications.evoformer_attention import attended, gradients

FORWARD = specification("evoformer_attention")
BACKWARD = specification("evoformer_attention_bwd")


def made(kernel, name, dtype=torch.float32):
    sample = next(one for one in kernel.samples if one.name == name)
    return sample.make(torch.Generator().manual_seed(5), dtype)


@pytest.mark.parametrize("name", ["both", "first", "second", "none"])
def test_the_oracle_is_what_autograd_derives(name):
    given = made(BACKWARD, name)
    leaves = {one: given[one].double().requires_grad_() for one in ("q", "k", "v", "bias1", "bias2")}
    q, k, v = (leaves[one].transpose(2, 3) for one in "qkv")
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    for bias in ("bias1", "bias2"):
        scores = scores + leaves[bias] if given[bias].numel() else scores
    expected = (torch.softmax(scores, -1) @ v).transpose(2, 3)
    expected.backward(given["do"].double())

    output, sums = attended(given)
    found = gradients(given, output, sums)

    torch.testing.assert_close(output.value, expected.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(sums.value, torch.logsumexp(scores.detach(), -1), rtol=1e-12, atol=1e-12)
    for leaf, gradient in zip(leaves, ("dq", "dk", "dv", "db1", "db2"), strict=True):
        if given[leaf].numel():
            torch.testing.assert_close(found[gradient].value, leaves[leaf].grad, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_bounds_are_of_the_order_of_a_rounding(dtype):
    given = made(BACKWARD, "both", dtype)
    unit = torch.finfo(dtype).eps / 2

    for path, expected in BACKWARD.oracle(given).items():
        assert float(expected.allowed.max() / expected.value.abs().max()) < 16 * unit, path


def test_a_row_that_sees_nothing_is_zero_and_passes_nothing_on():
    functions = find_builder("EvoformerAttnBuilder")().load()
    given = made(FORWARD, "hidden")

    functions.attention(*given.values())
    back = {**made(BACKWARD, "hidden"), **{name: given[name] for name in ("q", "k", "v", "o", "lse")}}
    functions.attention_bwd(*back.values())

    assert not given["o"][:, -1].any()
    assert bool((given["lse"].view(2, 3, 2, -1)[:, -1] == torch.inf).all())
    assert not any(back[name][:, -1].any() for name in ("dq", "dk", "dv", "db1"))
    assert all(bool(back[name].isfinite().all()) for name in ("dq", "dk", "dv", "db1", "db2"))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"q": torch.zeros(3, 4, 5)}, r"argument q: expected shape \(batch, rows, positions, heads, channels\)"),
        ({"bias1": torch.zeros(2, 3, 1, 33)}, r"argument bias1: expected shape \(2, 3, 1, 1, 33\), or no elements"),
        ({"lse": torch.zeros(6, 2, 33)}, r"argument lse: expected shape \(6, 2, 64\), got \(6, 2, 33\)"),
        ({"db2": torch.zeros(2, 2, 33, 33)}, r"argument db2: expected shape \(2, 1, 2, 33, 33\) of its bias"),
    ],
)
def test_wrong_arguments_are_named(change, sentence):
    functions = find_builder("EvoformerAttnBuilder")().load()

    with pytest.raises(UsageError, match=sentence):
        functions.attention_bwd(*{**made(BACKWARD, "both"), **change}.values())
