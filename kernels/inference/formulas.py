"""Portable formulas that several kernels share. Arithmetic is in float32 or wider for every dtype of the tensors."""

from __future__ import annotations

from enum import IntEnum

import torch
from torch import Tensor
from torch.nn import functional as nn

from conformance.kernels.arguments import wrong


class Activation(IntEnum):
    """Activations, with DeepSpeed's numbers."""

    GELU = 1
    RELU = 2
    GATED_GELU = 3
    GATED_SILU = 4


GATED = (Activation.GATED_GELU, Activation.GATED_SILU)


def wide(tensor: Tensor) -> Tensor:
    """Return ``tensor`` in float32, or in its own dtype if that is wider."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def layer_norm(source: Tensor, gamma: Tensor, beta: Tensor, epsilon: float) -> Tensor:
    """Return the LayerNorm over the last dimension, in float32 or wider."""
    return nn.layer_norm(wide(source), gamma.shape, wide(gamma), wide(beta), epsilon)


def rms_norm(source: Tensor, gamma: Tensor, epsilon: float) -> Tensor:
    """Return ``source`` divided by its root mean square over the last dimension, times ``gamma``; float32 or wider."""
    return nn.rms_norm(wide(source), gamma.shape, wide(gamma), epsilon)


def rotated(heads: Tensor, positions: Tensor, rotary_dim: int, halves: bool, theta: float) -> Tensor:
    """Return (batch, heads, tokens, channels) with the first ``rotary_dim`` channels rotated, in its own dtype.

    Rotary position embeddings: Su et al., 2021, arXiv:2104.09864. Pair i is rotated by the angle
    position / theta^(2i / rotary_dim). Pairs are channels i and i + rotary_dim / 2 if ``halves``, otherwise 2i and
    2i + 1. ``positions`` is (tokens,) or (batch, tokens).
    """
    index = torch.arange(0, rotary_dim, 2, device=heads.device, dtype=heads.dtype)
    angles = positions.to(heads.device, heads.dtype)[..., None] * theta ** -(index / rotary_dim)
    angles = angles if angles.dim() == 2 else angles[:, None]
    cos, sin = angles.cos(), angles.sin()
    channels, rest = heads[..., :rotary_dim], heads[..., rotary_dim:]
    pairs = channels.reshape(*channels.shape[:-1], 2, -1) if halves else channels.reshape(*heads.shape[:-1], -1, 2).mT
    first, second = pairs.unbind(-2)
    turned = torch.stack([first * cos - second * sin, second * cos + first * sin], dim=-2)
    turned = turned if halves else turned.transpose(-1, -2)
    return torch.cat([turned.flatten(-2), rest], dim=-1)


def dequantized(weight: Tensor, scale: Tensor) -> Tensor:
    """Return int8 rows times their group's scale, in float32; the rows form ``scale.numel()`` groups of equal size."""
    groups = scale.numel()
    return (weight.float().reshape(groups, -1) * scale.float().reshape(groups, 1)).reshape(weight.shape)


def product(source: Tensor, weight: Tensor, scale: Tensor, q_int8: bool, transpose: bool) -> Tensor:
    """Return ``source`` times the weight, in float32 or wider.

    The weight is (in, out), or (out, in) if ``transpose``. An int8 weight is always (out, in).
    """
    if q_int8:
        return wide(source) @ dequantized(weight, scale).to(wide(source).dtype).t()
    return wide(source) @ (wide(weight).t() if transpose else wide(weight))


def gelu_tanh(tensor: Tensor) -> Tensor:
    """Return GELU in its tanh form, which these kernels use except for gated activations."""
    return nn.gelu(tensor, approximate="tanh")


def gated(tensor: Tensor, activation: int) -> Tensor:
    """Return the first half of the last dimension times the activation (erf GELU or SiLU) of the second half."""
    left, right = tensor.chunk(2, dim=-1)
    return left * (nn.gelu(right) if activation == Activation.GATED_GELU else nn.silu(right))


def check_quantized(name: str, scale_name: str, weight: Tensor, scale: object) -> None:
    """Raise UsageError unless ``scale`` has one scale for each group of rows of the int8 ``weight``."""
    if not isinstance(scale, Tensor) or not scale.is_floating_point() or not scale.numel():
        got = f"{scale.dtype} with {scale.numel()} elements" if isinstance(scale, Tensor) else type(scale).__name__
        raise wrong(scale_name, "a floating tensor with a scale for each group of rows", got)
    if weight.shape[0] % scale.numel():
        raise wrong(scale_name, f"as many scales as divide the {weight.shape[0]} rows of {name}", scale.numel())
    if scale.device != weight.device:
        raise wrong(scale_name, f"a tensor on {weight.device}", f"one on {scale.device}")
