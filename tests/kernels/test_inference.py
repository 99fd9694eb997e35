"""Kernels of transformer inference against PyTorch's own functions in float64, and what a workspace refuses."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as nn

from conformance.base.errors import UsageError
from conformance.kernels.builders import find_builder
from conformance.kernels.inference import workspace
from conformance.kernels.inference.decoding import attended
from conformance.kernels.inference.formulas import rotated
from conformance.kernels.inference.rounding import BoundedValue
from conformance.kernels.inference.shapes import check_shapes
from conformance.kernels.specifications import specification
from conformance.kernels.vendors import VendorLibrary, VendorOperator

FUNCTIONS = find_builder("InferenceBuilder")().load()


def numbers(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def context(together: Tensor, heads: int, pairs: int, **more: object) -> list[Tensor]:
    """One prompt through attention, with nothing special about it."""
    none = torch.zeros(1, dtype=together.dtype)
    given = {
        "attn_mask": none, "rotary_dim": 0, "rotate_half": False, "rotate_every_two": False, "heads": heads,
        "num_kv": pairs, "norm_factor": 8**-0.25, "triangular": True, "local_attention": False, "window_size": 1,
        "no_masking": True, "layer_id": 0, "num_layers": 1, "alibi": none, "rope_theta": 10000.0, "is_prompt": True,
        "token_idx": None, "position_ids": None,
    }  # fmt: skip
    found: list[Tensor] = FUNCTIONS.softmax_context_fp32(together, *{**given, **more}.values())
    return found


@pytest.fixture
def allocated():
    """Room for 2 sequences of 8 tokens, 6 heads of 8 channels, 1 layer."""
    FUNCTIONS.allocate_workspace_fp32(48, 6, 4, 2, 1, 1, False, 0, 8, 1)
    yield
    FUNCTIONS.release_workspace()


def test_attention_is_torchs_with_shared_key_heads(allocated):
    together = numbers(2, 5, (6 + 2 * 2) * 8)
    q, k, v = (one.unflatten(-1, (-1, 8)).transpose(1, 2) for one in together.split([48, 16, 16], dim=-1))

    found = context(together.float(), 6, 2)[0]

    expected = nn.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(found.double(), expected.transpose(1, 2).flatten(2), rtol=1e-5, atol=1e-6)


def test_the_oracle_of_attention_is_torchs():
    together = numbers(2, 5, (6 + 2 * 3) * 8)
    q, k, v = (one.unflatten(-1, (-1, 8)).transpose(1, 2) for one in together.split([48, 24, 24], dim=-1))
    given = {
        "heads": 6, "num_kv": 3, "rotary_dim": 0, "norm_factor": 8**-0.25, "alibi": torch.zeros(1),
        "attn_mask": torch.zeros(1), "no_masking": True, "local_attention": False, "triangular": True,
    }  # fmt: skip

    found = attended(given, together)[0].value

    expected = nn.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(found, expected.transpose(1, 2).flatten(2), rtol=1e-12, atol=1e-12)


def test_a_quarter_turn_moves_a_pair_onto_its_other_channel():
    heads = torch.tensor([[[[1.0, 2.0, 3.0, 4.0, 9.0]]]])
    place = torch.tensor([torch.pi / 2])

    # Angles are π/2 for the first pair, and π/2 · 1e-2 … 1 for the second one with theta 1.
    halves, pairs = (rotated(heads, place, 4, order, 1.0).flatten().tolist() for order in (True, False))

    assert halves == pytest.approx([-3.0, -4.0, 1.0, 2.0, 9.0], abs=1e-6)
    assert pairs == pytest.approx([-2.0, 1.0, -4.0, 3.0, 9.0], abs=1e-6)


def test_a_row_that_sees_nothing_is_zero():
    scores = torch.ones(1, 1, 2, 3)
    mask = torch.tensor([[[[0.0, 0.0, -torch.inf], [-torch.inf] * 3]]])

    found = FUNCTIONS.softmax_fp32(scores, mask, torch.zeros(1), False, False, False, 1, False, 1.0, 0, 1)

    assert found.tolist() == [[[[0.5, 0.5, 0.0], [0.0, 0.0, 0.0]]]]
    assert found.data_ptr() == scores.data_ptr()


@pytest.mark.parametrize(("rows", "queries"), [([1, 0, 2], 3), ([3], 1)])
def test_a_window_is_as_long_for_one_query_as_for_all(rows, queries):
    keys = 4 if queries == 1 else 3
    found = FUNCTIONS.softmax_fp32(torch.zeros(1, 1, queries, keys), None, None, True, False, True, 2, False, 1.0, 0, 1)

    seen = (found > 0).sum(-1).flatten().tolist()
    assert seen == ([1, 2, 2] if queries == 3 else [2])
    assert found[0, 0, -1, -2:].tolist() == [0.5, 0.5]


def test_a_workspace_says_what_it_has_no_room_for(allocated):
    with pytest.raises(UsageError, match="query_key_value: expected at most 8 tokens"):
        context(torch.zeros(2, 9, 144), 6, 0)
    with pytest.raises(UsageError, match="query_key_value: expected at most 2 sequences, got 3"):
        context(torch.zeros(3, 2, 144), 6, 0)
    with pytest.raises(UsageError, match="expected 6 heads of 8 channels, got 3 of 16"):
        context(torch.zeros(2, 2, 144), 3, 0)
    with pytest.raises(UsageError, match="layer_id: expected a layer below 1, got 1"):
        context(torch.zeros(2, 2, 144), 6, 0, layer_id=1, num_layers=2)
    with pytest.raises(UsageError, match="token_idx: expected None"):
        context(torch.zeros(2, 2, 144), 6, 0, token_idx=3)


def test_a_prompt_without_tokens_is_refused_and_the_sequence_goes_on(allocated):
    together = numbers(2, 4, 18 * 8).float()
    context(together[:, :3].contiguous(), 6, 0)

    with pytest.raises(UsageError, match="query_key_value: expected at least one token, got 0"):
        context(together[:, :0], 6, 0)
    found = context(together[:, 3:].contiguous(), 6, 0, is_prompt=False)[0]

    torch.testing.assert_close(found, context(together, 6, 0)[0][:, 3:], rtol=1e-5, atol=1e-6)


def test_without_memory_there_is_no_attention():
    FUNCTIONS.allocate_workspace_fp32(48, 6, 4, 2, 1, 1, False, 0, 8, 1)
    FUNCTIONS.release_workspace()

    with pytest.raises(UsageError, match="the workspace is released"):
        context(torch.zeros(2, 2, 144), 6, 0)
    assert FUNCTIONS.retake_workspace() is True
    assert context(torch.zeros(2, 2, 144), 6, 0)[1].shape == (2, 6, 2, 8)
    FUNCTIONS.release_workspace()


def test_a_workspace_is_of_one_dtype():
    FUNCTIONS.allocate_workspace_fp16(48, 6, 4, 2, 1, 1, False, 0, 8, 1)

    with pytest.raises(UsageError, match=r"expected torch.float16, as the workspace, got torch.float32"):
        context(torch.zeros(2, 2, 144), 6, 0)
    FUNCTIONS.release_workspace()


@pytest.mark.parametrize(
    ("change", "argument"),
    [({0: 50}, "num_heads"), ({5: 4}, "num_heads"), ({8: 3}, "max_out_tokens"), ({4: 0}, "num_layers")],
)
def test_sizes_of_a_workspace_have_to_fit(change, argument):
    sizes = [48, 6, 4, 2, 1, 1, False, 0, 8, 1]
    before = workspace.WORKSPACE.size

    with pytest.raises(UsageError, match=f"argument {argument}: expected"):
        FUNCTIONS.allocate_workspace_fp32(*(change.get(place, size) for place, size in enumerate(sizes)))
    assert workspace.WORKSPACE.size == before


def test_a_vendors_workspace_gets_the_same_calls_before_it_is_used():
    calls: list[tuple[str, tuple[object, ...]]] = []

    def find(name):
        return lambda *given: calls.append((name, given))

    attend = workspace.follow(find, lambda *given: calls.append(("softmax_context", given)))
    sizes = (48, 6, 4, 2, 1, 1, False, 0, 8, 1)

    FUNCTIONS.allocate_workspace_bf16(*sizes)
    attend(1)
    FUNCTIONS.reset_cache()
    FUNCTIONS.reset_cache()
    attend(2)
    FUNCTIONS.allocate_workspace_fp32(*sizes)
    attend(3)
    FUNCTIONS.release_workspace()

    assert calls == [
        ("allocate_workspace_bf16", sizes), ("softmax_context", (1,)), ("reset_cache", ()), ("softmax_context", (2,)),
        ("allocate_workspace_fp32", sizes), ("softmax_context", (3,)),
    ]  # fmt: skip


def test_an_operator_is_looked_for_under_two_names():
    table = {"missing": VendorOperator("torch.ops.aten.nowhere", or_path="torch.ops.aten.relu")}
    library = VendorLibrary("cpu", "torch", {"InferenceBuilder": table})

    path, function = library.operator("InferenceBuilder", "missing")

    assert path == "torch.ops.aten.relu"
    assert function(torch.tensor([-1.0, 2.0])).tolist() == [0.0, 2.0]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_bounds_hold_for_float32_and_are_not_wide(seed):
    left, right = numbers(7, 33, seed=seed).float(), numbers(33, 5, seed=seed + 9).float()
    exact = BoundedValue.exact(left).contracted("ik,kj->ij", BoundedValue.exact(right), 33)

    for found in (left @ right, sum(left[:, k, None] * right[k] for k in range(33))):
        assert bool(((found.double() - exact.value).abs() <= exact.error).all())
    assert float((exact.error / (left.abs() @ right.abs()).double()).max()) < 1e-5


def test_bounds_know_no_error_of_what_is_exact_or_infinite():
    source = BoundedValue.exact(torch.tensor([1.0, torch.inf, torch.nan]))
    total = source + source

    assert source.error.tolist() == [0.0, 0.0, 0.0]
    assert total.error.tolist() == [pytest.approx(2.0**-23), 0.0, 0.0]
    assert float(total.stored(torch.float16).error[0]) == pytest.approx(2.0 * 2.0**-11, rel=1e-3)


def test_shapes_are_told_with_what_is_known():
    given = {"input": torch.zeros(2, 3, 5), "gamma": torch.zeros(6)}

    with pytest.raises(UsageError, match=r"argument gamma: expected shape \(h=5\), got \(6,\)"):
        check_shapes(given, {"input": "bsh", "gamma": "h"})
    assert check_shapes(given, {"input": ".h"}) == {"h": 5}


@pytest.mark.parametrize("activation", [1, 2, 3, 4])
def test_a_gated_or_plain_mlp_is_torchs(activation):
    x, residual, first = numbers(1, 3, 6), numbers(1, 3, 6, seed=2), numbers(6, 8, seed=3)
    second = numbers(4 if activation > 2 else 8, 6, seed=4)
    gamma, none = numbers(6, seed=5), torch.zeros(1)
    total = x + residual
    middle = nn.rms_norm(total, (6,), gamma, 1e-5) @ first
    left, right = middle.chunk(2, dim=-1)
    acted = [nn.gelu(middle, approximate="tanh"), middle.relu(), left * nn.gelu(right), left * nn.silu(right)]

    call = specification("rms_mlp_gemm").reference
    found, kept = call(x, residual, first, second, gamma, 1e-5, none, none, False, activation, False)

    torch.testing.assert_close(found, acted[activation - 1] @ second)
    assert kept is residual
    torch.testing.assert_close(residual, total)


def test_a_cache_is_repeated_for_as_many_sequences_as_were_allocated(allocated):
    with pytest.raises(UsageError, match="no prompt has gone through all layers"):
        FUNCTIONS.repeat_kv_cache_fp32(1, 2)
    prompt = numbers(1, 3, 144).float()
    _, keys, values = context(prompt, 6, 0)
    expected = [one.expand(2, -1, -1, -1).clone() for one in (keys, values)]

    with pytest.raises(UsageError, match="argument repeats: expected 2 sequences in all, as allocated, got 3"):
        FUNCTIONS.repeat_kv_cache_fp32(1, 3)
    found = FUNCTIONS.repeat_kv_cache_fp32(1, 2)

    assert [torch.equal(one, other) for one, other in zip(found, expected, strict=True)] == [True, True]


def test_a_cache_in_a_vendors_workspace_is_not_repeated_from_here(allocated):
    attend = workspace.follow(lambda name: lambda *given: None, lambda *given: "theirs")

    assert attend() == "theirs"
    with pytest.raises(NotImplementedError, match="in the vendor's own workspace"):
        FUNCTIONS.repeat_kv_cache_fp32(1, 2)
