"""Pure-PyTorch references of fused optimizer kernels: computed in float32 or wider, on the tensors' own device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def multi_tensor_adam(
    chunk_size: int,
    noop_flag: Tensor,
    tensor_lists: Sequence[Sequence[Tensor]],
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: int,
    mode: int,
    bias_correction: int,
    weight_decay: float,
) -> None:
    """One Adam step on lists of gradients, parameters, first and second moments, in place.

    ``mode`` 0 adds the decay to the gradient (Kingma and Ba, 2015, arXiv:1412.6980, algorithm 1), 1 decays the
    parameter on its own (Loshchilov and Hutter, 2019, arXiv:1711.05101, algorithm 2). A non-zero ``noop_flag``
    (a gradient overflowed) leaves everything as it is. ``chunk_size`` has no effect on values.
    """
    if int(noop_flag) != 0:
        return
    corrections = (1 - beta1**step, 1 - beta2**step) if bias_correction else (1.0, 1.0)
    for gradient, parameter, mean, square in zip(*tensor_lists, strict=True):
        g, p, m, v = (_wide(tensor) for tensor in (gradient, parameter, mean, square))
        if mode == 0:
            g = g + weight_decay * p
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        update = (m / corrections[0]) / ((v / corrections[1]).sqrt() + epsilon)
        if mode == 1:
            update = update + weight_decay * p
        for target, value in ((parameter, p - lr * update), (mean, m), (square, v)):
            target.copy_(value)


def multi_tensor_lion(
    chunk_size: int,
    noop_flag: Tensor,
    tensor_lists: Sequence[Sequence[Tensor]],
    lr: float,
    beta1: float,
    beta2: float,
    step: int,
    weight_decay: float,
) -> None:
    """One Lion step on lists of gradients, parameters and moments, in place (Chen et al., 2023, arXiv:2302.06675).

    The sign of the interpolated moment moves the parameter, decoupled decay shrinks it, and the moment follows
    with ``beta2``. ``step`` and ``chunk_size`` have no effect on values; ``noop_flag`` as for Adam.
    """
    if int(noop_flag) != 0:
        return
    for gradient, parameter, mean in zip(*tensor_lists, strict=True):
        g, p, m = (_wide(tensor) for tensor in (gradient, parameter, mean))
        direction = (beta1 * m + (1 - beta1) * g).sign()
        parameter.copy_(p - lr * (direction + weight_decay * p))
        mean.copy_(beta2 * m + (1 - beta2) * g)


def _wide(tensor: Tensor) -> Tensor:
    """At least float32, so that 16-bit parameters are updated without losing small steps on the way."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
