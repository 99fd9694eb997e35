"""Calls of kernels that PyTorch's databases do not make on the CPU: recurrent cells, attention, quantization.

Some kernels exist on accelerators alone, such as a fused cell. Others are behind functions that no database has.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

#: Rows, hidden features, and features of an embedding with its heads.
_ROWS, _HIDDEN, _WIDTH, _HEADS = 5, 3, 8, 2
Values = list[Any]


def numbers(*shape: int, scale: float = 1.0) -> torch.Tensor:
    """Return numbers between -1.5 and 1.5 without a period, times a scale."""
    places = torch.arange(math.prod(shape), dtype=torch.float64)
    return ((places * 0.6180339887 % 1 * 3 - 1.5) * scale).float().reshape(shape)


def integers(*shape: int, below: int) -> torch.Tensor:
    """Return integers from 0 on without a period."""
    return (torch.arange(math.prod(shape)) * 40503 % 8191 % below).reshape(shape)


def of(name: str) -> list[Values]:
    """Return further calls of an overload: values in the order of its schema."""
    made = _CALLS.get(name)
    return made() if made is not None else []


def _lstm(count: int = 4) -> list[Values]:
    gates = [numbers(_ROWS, count * _HIDDEN, scale=scale) for scale in (1.0, 0.7)]
    biases = [numbers(count * _HIDDEN, scale=scale) for scale in (0.5, 0.3)]
    state = numbers(_ROWS, _HIDDEN)
    return [[*gates, state, None, None], [*gates, state, *biases]]


def _lstm_backward() -> list[Values]:
    grads = [numbers(_ROWS, _HIDDEN, scale=scale) for scale in (1.0, 0.6)]
    state = [numbers(_ROWS, _HIDDEN, scale=scale) for scale in (0.4, 0.9)]
    workspace = numbers(_ROWS, 4 * _HIDDEN).sigmoid()
    given = [grads, [grads[0], None], [None, grads[1]]]
    return [[*each, *state, workspace, has_bias] for each in given for has_bias in (True, False)]


def _gru_backward() -> list[Values]:
    return [[numbers(_ROWS, _HIDDEN), numbers(_ROWS, 5 * _HIDDEN).sigmoid(), has_bias] for has_bias in (True, False)]


def _attention() -> list[Values]:
    x = numbers(2, _ROWS, _WIDTH)
    weights = [numbers(3 * _WIDTH, _WIDTH, scale=0.4), numbers(3 * _WIDTH, scale=0.3)]
    weights += [numbers(_WIDTH, _WIDTH, scale=0.5), numbers(_WIDTH, scale=0.2)]
    padding = torch.zeros(2, _ROWS, dtype=torch.bool)
    padding[1, -2:] = True
    causal = torch.ones(_ROWS, _ROWS, dtype=torch.bool).triu(1)
    plain = [x, x, x, _WIDTH, _HEADS, *weights]
    masks = [(None, None), (padding, 1), (causal, 0)]
    return [[*plain, mask, True, average, kind] for mask, kind in masks for average in (True, False)]


def _encoder() -> list[Values]:
    _, _, x, _, _, *weights = _attention()[0][:9]
    vectors = [numbers(_WIDTH, scale=scale) for scale in (1.0, 0.3, 0.8, 0.2)]
    feeds = [numbers(2 * _WIDTH, _WIDTH, scale=0.5), numbers(2 * _WIDTH, scale=0.1)]
    feeds += [numbers(_WIDTH, 2 * _WIDTH, scale=0.4), numbers(_WIDTH, scale=0.2)]
    return [
        [x, _WIDTH, _HEADS, *weights, gelu, first, 1e-5, *vectors, *feeds, None, None]
        for gelu in (True, False)
        for first in (True, False)
    ]


def _rescaled() -> list[Values]:
    return [[numbers(2, _ROWS, 3 * _WIDTH), numbers(3 * _WIDTH, scale=0.5), _HEADS]]


def _masked() -> list[Values]:
    x, mask = numbers(2, _HEADS, _ROWS, _ROWS), integers(2, _HEADS, _ROWS, _ROWS, below=3) == 0
    rows = [numbers(4, 6), integers(4, 6, below=3) == 0]
    return [[x, mask, -1, 2], [*rows, 1, None], [*rows, 0, None]]


def _masked_backward() -> list[Values]:
    mask = integers(4, 6, below=3) == 0
    output = numbers(4, 6).masked_fill(mask, -math.inf).softmax(-1)
    return [[numbers(4, 6), output, mask, -1], [numbers(4, 6), output, mask, None]]


_LEVELS = (-8, 7)


def _per_tensor() -> list[Values]:
    return [[numbers(6, 7, scale=4.0), 0.25, zero, *_LEVELS] for zero in (0, 2)]


def _per_channel() -> list[Values]:
    zeros = integers(6, below=3).int()
    return [[numbers(6, 7, scale=4.0), numbers(6).abs() + 0.1, zeros, 0, *_LEVELS],
            [numbers(7, 6, scale=4.0), numbers(6).abs() + 0.1, zeros, 1, *_LEVELS]]  # fmt: skip


def _of_tensors() -> list[Values]:
    on = [torch.tensor([enabled]) for enabled in (1, 0)]
    zero = torch.tensor([1], dtype=torch.int32)
    return [[numbers(6, 7, scale=4.0), torch.tensor([0.25]), zero, each, *_LEVELS] for each in on]


def _learnable(*, channels: bool, backward: bool) -> list[Values]:
    x = numbers(6, 7, scale=4.0)
    scale, zero = (numbers(6).abs() + 0.1, integers(6, below=3).float()) if channels else _one(0.25, 1.0)
    given = [numbers(6, 7)] if backward else []
    return [[*given, x, scale, zero, *([0] if channels else []), *_LEVELS, factor] for factor in (1.0, 0.5)]


def _one(*values: float) -> tuple[torch.Tensor, ...]:
    return tuple(torch.tensor([value]) for value in values)


def _observed() -> list[Values]:
    found = []
    for rows, symmetric in ((1, False), (6, False), (1, True)):
        low, high = torch.full((rows,), -1.0), torch.full((rows,), 2.0)
        state = [low, high, torch.ones(rows), torch.zeros(rows, dtype=torch.int32)]
        on = [torch.tensor([1]), torch.tensor([1])]
        found.append([numbers(6, 7, scale=4.0), *on, *state, 0.3, *_LEVELS, 0, rows > 1, symmetric])
    return found


def _loss_scales() -> list[Values]:
    scale, steps = torch.tensor(4.0), torch.tensor(1, dtype=torch.int32)
    return [[scale, steps, torch.tensor(found), 2.0, 0.5, every] for found in (0.0, 1.0) for every in (2, 3)]


def _unscaled() -> list[Values]:
    lists = [numbers(4, 3), numbers(7)]
    return [[lists, torch.zeros(1), torch.tensor([0.25])], [[*lists, torch.tensor([math.inf])], *_one(0.0, 0.5)]]


def _weight_norm() -> list[Values]:
    return [[numbers(4, 3), numbers(4, 1) + 2, 0], [numbers(3, 5), numbers(1, 5) + 2, 1]]


def _weight_norm_backward() -> list[Values]:
    norms = [weight.norm(dim=1 - dim, keepdim=True) for weight, _, dim in _weight_norm()]
    return [
        [numbers(*v.shape, scale=0.7), v, g, norm, dim] for (v, g, dim), norm in zip(_weight_norm(), norms, strict=True)
    ]


def _statistics() -> list[Values]:
    return [[numbers(4, 3, 5), numbers(3), numbers(3).abs() + 0.5, 0.3], [numbers(6, 3), None, None, 0.1]]


def _halves() -> list[Values]:
    return [[torch.nn.functional.glu(x, dim), x, x.flip(0), dim] for x in (numbers(4, 6),) for dim in (0, 1)]


def _halves_backward() -> list[Values]:
    x, half = numbers(4, 6), numbers(4, 3)
    return [[numbers(4, 6, scale=0.4), half, x, half.flip(0), x.flip(0), 1]]


def _renormed() -> list[Values]:
    return [[numbers(6, 4), integers(5, below=6), 1.0, order] for order in (2.0, 1.0)]


def _rows() -> torch.Tensor:
    return integers(8, 2, below=3).float()


def _unique() -> list[Values]:
    return [[_rows(), dim, *flags] for dim in (0, 1) for flags in ((True, True, True), (True, False, False))]


def _unique_consecutive() -> list[Values]:
    rows = _rows().repeat_interleave(2, 0)
    return [[rows, dim, *flags] for dim in (0, 1) for flags in ((True, True), (False, False))]


def _bags() -> list[Values]:
    weight, indices, offsets = numbers(7, 3), integers(9, below=7), torch.tensor([0, 4, 4])
    each = numbers(9)
    return [[weight, indices, offsets, False, mode, False, None, False, padding] for mode in (0, 1, 2)
            for padding in (-1, 3)] + [[weight, indices, offsets, False, 0, False, each, True, -1]]  # fmt: skip


def _alignments() -> list[Values]:
    """Return calls of the backward of a loss over all alignments of a target with a sequence."""
    logs, targets = numbers(7, 2, 4).log_softmax(-1), torch.tensor([[1, 2, 2], [3, 1, 1]])
    lengths, of_targets = [7, 6], [3, 2]
    loss, alpha = torch.ops.aten._ctc_loss(logs, targets, lengths, of_targets)
    return [[torch.tensor([1.0, 0.6]), logs, targets, lengths, of_targets, loss, alpha, 0, flag]
            for flag in (False, True)]  # fmt: skip


def _scaled_products() -> list[Values]:
    left, right = (numbers(32, 16, scale=scale).to(torch.float8_e4m3fn) for scale in (1.0, 0.6))
    scales = [[torch.tensor(scale)] for scale in (0.5, 2.0)]
    return [[left, right.T, scales[0], [0], [0], scales[1], [0], [0], None, dtype, [], False]
            for dtype in (torch.float32, torch.bfloat16)]  # fmt: skip


def _gamma_gradients() -> list[Values]:
    return [[numbers(9).abs() + 0.5, numbers(9).flip(0).abs() + 0.3]]


def _dirichlet_gradients() -> list[Values]:
    shares = numbers(4, 3).softmax(-1)
    alpha = numbers(4, 3).abs() + 0.5
    return [[shares, alpha, alpha.sum(-1, keepdim=True).expand(4, 3).contiguous()]]


def _running() -> list[Values]:
    return [[x, torch.empty_like(x), torch.empty_like(x, dtype=torch.int64), dim]
            for x in (numbers(4, 6),) for dim in (0, 1)]  # fmt: skip


def _cholesky() -> list[Values]:
    lower = numbers(3, 3).tril() + 2 * torch.eye(3)
    return [[numbers(3, 2), lower, False], [numbers(3, 2), lower.T.contiguous(), True]]


def _index_put() -> list[Values]:
    return [[numbers(6, 4), [torch.tensor([0, 3, 3]), torch.tensor([1, 2, 2])], numbers(3), accumulate, False]
            for accumulate in (True, False)]  # fmt: skip


def _shifts() -> list[Values]:
    return [[integers(6, below=99), integers(6, below=5)], [integers(4, 3, below=99), integers(4, 3, below=5)]]


def _searches() -> list[Values]:
    keys = torch.tensor([1.0, 2.0, 2.0, 4.0])
    order = torch.tensor([2, 0, 3, 1])
    shuffled = torch.empty(4).scatter_(0, order, keys)
    wanted = torch.tensor([2.0, 0.5, 4.0, 3.0, 9.0])
    rows, places = torch.stack((keys, keys + 1)), torch.stack((wanted, wanted))
    plain = [[rows, places, False, right, side, None] for right, side in ((False, None), (True, None))]
    keys, wanted = _large_keys()
    plain += [[keys, wanted, False, right, None, None] for right in (False, True)]
    return [*plain, [rows, places, True, False, "right", None], [shuffled, wanted, False, False, None, order],
            [shuffled, wanted, False, True, None, order]]  # fmt: skip


def _large_keys() -> tuple[torch.Tensor, torch.Tensor]:
    """Return integers that no number of floating point holds, and those beside them."""
    large = [(1 << 24) + 1, (1 << 53) + 1]
    return torch.tensor([1, *large]), torch.tensor([number + step for number in large for step in (-1, 0, 1)])


def _buckets() -> list[Values]:
    keys, wanted = _large_keys()
    return [[wanted, keys, False, right] for right in (False, True)]


def _shifted_by(number: int) -> list[Values]:
    return [[given[0], number] for given in _shifts()]


_CALLS: dict[str, Callable[[], list[Values]]] = {
    f"aten::{name}": made
    for name, made in {
        "_thnn_fused_lstm_cell": _lstm,
        "_thnn_fused_lstm_cell_backward_impl": _lstm_backward,
        "_thnn_fused_gru_cell": lambda: _lstm(3),
        "_thnn_fused_gru_cell_backward": _gru_backward,
        "_native_multi_head_attention": _attention,
        "_transformer_encoder_layer_fwd": _encoder,
        "_transform_bias_rescale_qkv": _rescaled,
        "_masked_softmax": _masked,
        "_masked_softmax_backward": _masked_backward,
        "fake_quantize_per_tensor_affine_cachemask": _per_tensor,
        "fake_quantize_per_channel_affine_cachemask": _per_channel,
        "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams": _of_tensors,
        "_fake_quantize_learnable_per_tensor_affine": lambda: _learnable(channels=False, backward=False),
        "_fake_quantize_learnable_per_tensor_affine_backward": lambda: _learnable(channels=False, backward=True),
        "_fake_quantize_learnable_per_channel_affine": lambda: _learnable(channels=True, backward=False),
        "_fake_quantize_learnable_per_channel_affine_backward": lambda: _learnable(channels=True, backward=True),
        "_fused_moving_avg_obs_fq_helper": _observed,
        "_amp_update_scale_": _loss_scales,
        "_amp_foreach_non_finite_check_and_unscale_": _unscaled,
        "_weight_norm_interface": _weight_norm,
        "_weight_norm_interface_backward": _weight_norm_backward,
        "batch_norm_update_stats": _statistics,
        "glu_jvp": _halves,
        "glu_backward_jvp": _halves_backward,
        "embedding_renorm_": _renormed,
        "unique_dim": _unique,
        "unique_dim_consecutive": _unique_consecutive,
        "_embedding_bag_forward_only": _bags,
        "_embedding_bag": _bags,
        "_ctc_loss_backward": _alignments,
        "_scaled_mm_v2": _scaled_products,
        "_standard_gamma_grad": _gamma_gradients,
        "_dirichlet_grad": _dirichlet_gradients,
        "_cummax_helper": _running,
        "_cummin_helper": _running,
        "_logcumsumexp": lambda: [[numbers(4, 6), 0], [numbers(4, 6), 1]],
        "_cholesky_solve_helper": _cholesky,
        "_index_put_impl_": _index_put,
        "__lshift__.Tensor": _shifts,
        "__rshift__.Tensor": _shifts,
        "__ilshift__.Tensor": _shifts,
        "__irshift__.Tensor": _shifts,
        "__lshift__.Scalar": lambda: _shifted_by(2),
        "__rshift__.Scalar": lambda: _shifted_by(2),
        "__ilshift__.Scalar": lambda: _shifted_by(2),
        "__irshift__.Scalar": lambda: _shifted_by(2),
        "searchsorted.Tensor": _searches,
        "bucketize.Tensor": _buckets,
    }.items()
}
#: Overloads that have further calls.
NAMES = tuple(_CALLS)
