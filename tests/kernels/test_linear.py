"""Layers with frozen weights: what they say, and what happens to them when they are moved, merged and refused."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from conformance.base.errors import UsageError
from conformance.kernels.linear import Codec, FrozenLinear, LoRALinear, Shards, StoredAs
from tests.kernels.ranks import run_ranks


def layer(outputs: int = 6, inputs: int = 10, dtype: torch.dtype = torch.bfloat16) -> nn.Linear:
    torch.manual_seed(3)
    return nn.Linear(inputs, outputs, dtype=dtype)


def test_a_layer_says_how_its_weight_is_stored():
    frozen = FrozenLinear(layer(), Codec(StoredAs.FP6, 8))

    assert str(frozen) == "FrozenLinear(in_features=10, out_features=6, stored as fp6)"
    assert frozen.weight.shape == (8, 8 * 6 // 8 + 4)  # 60 weights in groups of 8, the last one filled up


def test_the_bias_stays_the_layers_own_and_the_weight_is_copied():
    linear = layer()
    frozen = FrozenLinear(linear)
    with torch.no_grad():
        linear.weight.zero_()

    assert frozen.bias is linear.bias
    assert bool(frozen.weight.any())
    assert [name for name, _ in frozen.named_parameters()] == ["bias"]


@pytest.mark.parametrize("stored", [None, StoredAs.INT8, StoredAs.FP12])
def test_lora_is_the_product_with_the_sum_of_matrices(stored):
    tuned = LoRALinear(FrozenLinear(layer(), stored and Codec(stored, 20)), rank=2, alpha=8.0)
    with torch.no_grad():
        tuned.up.copy_(torch.arange(12.0).view(6, 2) / 8)
    x = torch.randn(3, 10, generator=torch.Generator().manual_seed(1)).bfloat16()
    matrix = tuned.base.full_weight().double() + 4.0 * tuned.up.double() @ tuned.down.double()

    expected = x.double() @ matrix.T + tuned.base.bias.double()

    torch.testing.assert_close(tuned(x).double(), expected, rtol=0.03, atol=0.05)


def test_what_is_merged_is_gone_when_the_layer_moves():
    tuned = LoRALinear(layer(dtype=torch.float32), rank=2)
    tuned.merge()
    assert tuned.merged

    tuned.to(torch.float64)

    assert not tuned.merged
    assert tuned(torch.ones(1, 10, dtype=torch.float64)).dtype is torch.float64


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: LoRALinear(layer(), rank=0), "argument rank: expected at least 1, got 0"),
        (lambda: Codec(StoredAs.FP6, 10), "argument group_size: expected a number of 6-bit numbers that fills 3 bytes"),
        (lambda: Codec(StoredAs.FP8, 0), "argument group_size"),
        (lambda: FrozenLinear(layer(dtype=torch.float32), Codec()), "argument weight: expected torch.float16 or"),
        (Shards, "there is no process group"),
    ],
)
def test_what_makes_no_layer_is_named(make, sentence):
    with pytest.raises(UsageError, match=sentence):
        make()


def shared(rank: int, size: int, stored: StoredAs | None) -> tuple[torch.Tensor, int, str]:
    frozen = FrozenLinear(layer(7, 9), stored and Codec(stored, 8), Shards())
    twin = copy.deepcopy(frozen)
    assert torch.equal(twin.full_weight(), frozen.full_weight())
    return frozen.full_weight(), frozen.weight.numel(), str(frozen)


@pytest.mark.parametrize(("stored", "elements"), [(None, 21), (StoredAs.FP8, 3 * 12)])
def test_three_ranks_hold_a_third_each_and_see_the_whole(stored, elements):
    by_rank = run_ranks(shared, 3, stored)

    for whole, held, told in by_rank:
        torch.testing.assert_close(whole, layer(7, 9).weight.detach(), rtol=0.0 if stored is None else 0.07, atol=0.01)
        assert held == elements
        assert told.endswith("on 3 ranks)")
