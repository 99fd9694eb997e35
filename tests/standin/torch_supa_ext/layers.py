"""What transformer and convolution layers do around their products. Arithmetic is in float32 or wider."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as nn

GATED_GELU, GATED_SILU = 3, 4


def layer_norm(source: Tensor, gamma: Tensor, beta: Tensor, epsilon: float) -> Tensor:
    """Normalised over the last dimension."""
    return nn.layer_norm(_wide(source), gamma.shape, _wide(gamma), _wide(beta), epsilon).to(source.dtype)


def layer_norm_residual(
    source: Tensor, bias: Tensor, residual: Tensor, gamma: Tensor, beta: Tensor, epsilon: float
) -> Tensor:
    """Normalised sum of input, bias and residual."""
    return layer_norm_residual_store_pre_ln_res(source, bias, residual, gamma, beta, epsilon)[0]


def layer_norm_residual_store_pre_ln_res(
    source: Tensor, bias: Tensor, residual: Tensor, gamma: Tensor, beta: Tensor, epsilon: float
) -> list[Tensor]:
    """The normalised sum of input, bias and residual, and the sum itself."""
    total = _wide(source) + _wide(bias) + _wide(residual)
    return [layer_norm(total, gamma, beta, epsilon).to(source.dtype), total.to(source.dtype)]


def nhwc_bias_add(activation: Tensor, bias: Tensor) -> Tensor:
    """A bias per channel, added to images (N, C, H, W) whose channels lie next to each other in memory."""
    return (activation + _per_channel(bias)).contiguous(memory_format=torch.channels_last)


def nhwc_bias_add_add(activation: Tensor, bias: Tensor, other: Tensor) -> Tensor:
    """The same, and other images on top."""
    return nhwc_bias_add(activation, bias) + other


def nhwc_bias_add_bias_add(activation: Tensor, bias: Tensor, other: Tensor, other_bias: Tensor) -> Tensor:
    """Two images with a bias each, added."""
    return nhwc_bias_add(activation, bias) + nhwc_bias_add(other, other_bias)


def bias_gelu(source: Tensor, bias: Tensor) -> Tensor:
    """In place: the tanh form of gelu, of input and bias."""
    return source.copy_(nn.gelu(_wide(source) + _wide(bias), approximate="tanh"))


def bias_add(source: Tensor, bias: Tensor) -> Tensor:
    """In place."""
    return source.copy_(_wide(source) + _wide(bias))


def bias_relu(source: Tensor, bias: Tensor) -> Tensor:
    """In place."""
    return source.copy_((_wide(source) + _wide(bias)).relu())


def bias_residual(source: Tensor, residual: Tensor, bias: Tensor) -> Tensor:
    """In place: input, residual and bias."""
    return source.copy_(_wide(source) + _wide(residual) + _wide(bias))


def gated_activation(activation: Tensor, bias: Tensor, func: int) -> Tensor:
    """The first half of the last dimension times the activation of the second."""
    gates = {GATED_GELU: nn.gelu, GATED_SILU: nn.silu}
    if func not in gates:
        raise ValueError(f"activation {func} is not gated; {GATED_GELU} is gated gelu, {GATED_SILU} gated silu")
    left, right = (_wide(activation) + _wide(bias)).chunk(2, dim=-1)
    return (left * gates[func](right)).to(activation.dtype)


def vector_add(a: Tensor, b: Tensor, gamma: float) -> Tensor:
    """In place: ``gamma * a + b``."""
    return a.copy_(gamma * _wide(a) + _wide(b))


def moe_res_matmul(residual: Tensor, coef: Tensor, output: Tensor) -> Tensor:
    """In place: residual and expert output, each times its half of the coefficients' last dimension."""
    left, right = _wide(coef).chunk(2, dim=-1)
    return output.copy_(_wide(residual) * left + _wide(output) * right)


def residual_add_bias(
    hidden_state: Tensor,
    residual: Tensor,
    attention_output: Tensor,
    attention_bias: Tensor,
    final_bias: Tensor,
    mp_size: int,
    mlp_after_attn: bool,
    add_bias: bool,
    pre_layer_norm: bool,
) -> Tensor:
    """In place, in ``residual``: what a layer adds up at its end. Biases every rank has are divided by ``mp_size``."""
    hidden, rest = _wide(hidden_state), _wide(residual)
    attention, bias, final = (_wide(tensor) for tensor in (attention_output, attention_bias, final_bias))
    if not mlp_after_attn:
        shared = rest + (bias if add_bias else 0) + final
        return residual.copy_(hidden + attention + shared / mp_size)
    if pre_layer_norm:
        return residual.copy_(hidden + (rest + attention + bias + final) / mp_size)
    return residual.copy_(hidden + rest + final)


def _per_channel(bias: Tensor) -> Tensor:
    return bias.reshape(1, -1, 1, 1)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
