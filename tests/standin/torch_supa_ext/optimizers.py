"""Fused optimizers: one call updates lists of tensors in place. Arithmetic is in float32 or wider."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Tensors = Sequence[Tensor]


def multi_tensor_adam(
    chunk_size: int,
    noop_flag: Tensor,
    grads: Tensors,
    params: Tensors,
    exp_avgs: Tensors,
    exp_avg_sqs: Tensors,
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: int,
    mode: int,
    bias_correction: int,
    weight_decay: float,
) -> None:
    """Adam with decay in the gradient (``mode`` 0), or decoupled (``mode`` 1). A set ``noop_flag`` skips the step."""
    if not noop_flag.is_meta and noop_flag.item():
        return
    first = 1 - beta1**step if bias_correction else 1.0
    second = 1 - beta2**step if bias_correction else 1.0
    for grad, param, exp_avg, exp_avg_sq in zip(grads, params, exp_avgs, exp_avg_sqs, strict=True):
        gradient, old = _wide(grad), _wide(param)
        if mode == 0:
            gradient = gradient.add(old, alpha=weight_decay)
        mean = _wide(exp_avg).lerp(gradient, 1 - beta1)
        square = _wide(exp_avg_sq).mul(beta2).addcmul(gradient, gradient, value=1 - beta2)
        new = old.addcdiv(mean, (square / second).sqrt() + epsilon, value=-lr / first)
        if mode == 1:
            new = new.sub(old, alpha=lr * weight_decay)
        param.copy_(new)
        exp_avg.copy_(mean)
        exp_avg_sq.copy_(square)


def multi_tensor_lion(
    chunk_size: int,
    noop_flag: Tensor,
    grads: Tensors,
    params: Tensors,
    exp_avgs: Tensors,
    lr: float,
    beta1: float,
    beta2: float,
    step: int,
    weight_decay: float,
) -> None:
    """Lion: the sign of the interpolated moment, and decoupled decay."""
    if not noop_flag.is_meta and noop_flag.item():
        return
    for grad, param, exp_avg in zip(grads, params, exp_avgs, strict=True):
        gradient, old, moment = _wide(grad), _wide(param), _wide(exp_avg)
        sign = torch.lerp(moment, gradient, 1 - beta1).sign()
        param.copy_(old * (1 - lr * weight_decay) - lr * sign)
        exp_avg.copy_(torch.lerp(moment, gradient, 1 - beta2))


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
