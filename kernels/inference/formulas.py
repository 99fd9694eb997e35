"""The portable formulas that several kernels share. Arithmetic is in float32 or wider, whatever the tensors' dtype."""

from __future__ import annotations

from enum import IntEnum

import torch
from torch import Tensor
from torch.nn import functional as nn

from conformance.kernels.arguments import wrong


class Activation(IntEnum):
    """DeepSpeed's numbers for activations."""

    GELU = 1
    RELU = 2
    GATED_GELU = 3
    GATED_SILU = 4


GATED = (Activation.GATED_GELU, Activation.GATED_SILU)


def wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def layer_norm(source: Tensor, gamma: Tensor, beta: Tensor, epsilon: float) -> Tensor:
    """Of the last dimension; the answer is wide."""
    return nn.layer_norm(wide(source), gamma.shape, wide(gamma), wide(beta), epsilon)


def rms_norm(source: Tensor, gamma: Tensor, epsilon: float) -> Tensor:
    """Divided by the root of the mean square of the last dimension, and scaled; the answer is wide."""
    return nn.rms_norm(wide(source), gamma.shape, wide(gamma), epsilon)


def dequantized(weight: Tensor, scale: Tensor) -> Tensor:
    """int8 rows in ``scale.numel()`` groups of equal size, each times its group's scale; float32."""
    groups = scale.numel()
    return (weight.float().reshape(groups, -1) * scale.float().reshape(groups, 1)).reshape(weight.shape)


def product(source: Tensor, weight: Tensor, scale: Tensor, q_int8: bool, transpose: bool) -> Tensor:
    """``source`` times the weight, wide. It is (in, out), or (out, in) if transposed; int8 weights are always so."""
    if q_int8:
        return wide(source) @ dequantized(weight, scale).to(wide(source).dtype).t()
    return wide(source) @ (wide(weight).t() if transpose else wide(weight))


def gelu_tanh(tensor: Tensor) -> Tensor:
    """The tanh form, which is what these kernels mean by GELU where no gate is involved."""
    return nn.gelu(tensor, approximate="tanh")


def gated(tensor: Tensor, activation: int) -> Tensor:
    """The first half of the last dimension times the activation (erf GELU or SiLU) of the second."""
    left, right = tensor.chunk(2, dim=-1)
    return left * (nn.gelu(right) if activation == Activation.GATED_GELU else nn.silu(right))


def check_quantized(name: str, scale_name: str, weight: Tensor, scale: object) -> None:
    """int8 weights need one scale for each group of rows."""
    if not isinstance(scale, Tensor) or not scale.is_floating_point() or not scale.numel():
        got = f"{scale.dtype} with {scale.numel()} elements" if isinstance(scale, Tensor) else type(scale).__name__
        raise wrong(scale_name, "a floating tensor with a scale for each group of rows", got)
    if weight.shape[0] % scale.numel():
        raise wrong(scale_name, f"as many scales as divide the {weight.shape[0]} rows of {name}", scale.numel())
    if scale.device != weight.device:
        raise wrong(scale_name, f"a tensor on {weight.device}", f"one on {scale.device}")
