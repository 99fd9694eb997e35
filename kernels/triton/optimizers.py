"""Fused Adam, AdamW and Lion: one tensor's step in one pass over memory, in float32 for every storage dtype.

Quotients and roots are correctly rounded. The fast ones flush subnormal numbers, and they would save nothing: memory
is the bottleneck. The overflow flag is read on the device, so that no step waits for the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from conformance.kernels.optimizers.multi_tensor import TensorLists, adam_signature, lion_signature
from conformance.kernels.optimizers.portable import AdamSettings
from conformance.kernels.triton.launching import BLOCK, current


@triton.jit
def _adam(
    gradients: tl.tensor, parameters: tl.tensor, means: tl.tensor, squares: tl.tensor, flag: tl.tensor,
    count: tl.tensor, rate: tl.tensor, decay: tl.tensor, beta1: tl.tensor, rest1: tl.tensor, beta2: tl.tensor,
    rest2: tl.tensor, epsilon: tl.tensor, correction1: tl.tensor, correction2: tl.tensor,
    DECOUPLED: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """Take Adam's step for ``BLOCK`` elements of one tensor."""
    # 64-bit offsets: a tensor may have 2^31 elements or more.
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    # A set flag masks every element, so the host need not read it and wait.
    inside = offsets < tl.where(tl.load(flag) == 0, count, 0)
    g = tl.load(gradients + offsets, mask=inside, other=0.0).to(tl.float32)
    p = tl.load(parameters + offsets, mask=inside, other=0.0).to(tl.float32)
    m = tl.load(means + offsets, mask=inside, other=0.0).to(tl.float32)
    v = tl.load(squares + offsets, mask=inside, other=0.0).to(tl.float32)
    if not DECOUPLED:
        g += decay * p
    m = beta1 * m + rest1 * g
    v = beta2 * v + rest2 * g * g
    update = tl.div_rn(tl.div_rn(m, correction1), tl.sqrt_rn(tl.div_rn(v, correction2)) + epsilon)
    if DECOUPLED:
        update += decay * p
    tl.store(parameters + offsets, p - rate * update, mask=inside)
    tl.store(means + offsets, m, mask=inside)
    tl.store(squares + offsets, v, mask=inside)


@triton.jit
def _lion(
    gradients: tl.tensor, parameters: tl.tensor, means: tl.tensor, flag: tl.tensor, count: tl.tensor, rate: tl.tensor,
    decay: tl.tensor, beta1: tl.tensor, rest1: tl.tensor, beta2: tl.tensor, rest2: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """Take Lion's step for ``BLOCK`` elements of one tensor."""
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < tl.where(tl.load(flag) == 0, count, 0)
    g = tl.load(gradients + offsets, mask=inside, other=0.0).to(tl.float32)
    p = tl.load(parameters + offsets, mask=inside, other=0.0).to(tl.float32)
    m = tl.load(means + offsets, mask=inside, other=0.0).to(tl.float32)
    blend = beta1 * m + rest1 * g
    # 0 and NaN are neither above nor below 0 and stay as they are.
    direction = tl.where(blend > 0, 1.0, tl.where(blend < 0, -1.0, blend))
    tl.store(parameters + offsets, p - rate * (direction + decay * p), mask=inside)
    tl.store(means + offsets, beta2 * m + rest2 * g, mask=inside)


@adam_signature
def multi_tensor_adam(noop_flag: Tensor, tensor_lists: TensorLists, settings: AdamSettings) -> None:
    """Run the Adam or AdamW step as specified, with one launch for each parameter."""
    numbers = (*_rates(settings.lr, settings.beta1, settings.beta2, settings.weight_decay), settings.epsilon)
    for row in zip(*tensor_lists, strict=True):
        _step(_adam, row, noop_flag, (*numbers, *settings.corrections), DECOUPLED=settings.decoupled)


@lion_signature
def multi_tensor_lion(
    noop_flag: Tensor, tensor_lists: TensorLists, lr: float, beta1: float, beta2: float, weight_decay: float
) -> None:
    """Run the Lion step as specified, with one launch for each parameter."""
    numbers = _rates(lr, beta1, beta2, weight_decay)
    for row in zip(*tensor_lists, strict=True):
        _step(_lion, row, noop_flag, numbers)


def _rates(lr: float, beta1: float, beta2: float, weight_decay: float) -> tuple[float, ...]:
    return (lr, weight_decay, beta1, 1 - beta1, beta2, 1 - beta2)


def _step(kernel: Any, tensors: Sequence[Tensor], flag: Tensor, numbers: Sequence[float], **constants: bool) -> None:
    """Launch ``kernel`` on one tensor, unless it is empty."""
    leading = tensors[0]
    if not leading.numel():
        return
    # The flag may be on the host or on another device than this tensor.
    here = flag.to(leading.device, torch.int32)
    with current(leading):
        # Triton specializes on the types of arguments: an int would be compiled as an integer.
        kernel[(triton.cdiv(leading.numel(), BLOCK),)](
            *tensors, here, leading.numel(), *map(float, numbers), BLOCK=BLOCK, **constants
        )
