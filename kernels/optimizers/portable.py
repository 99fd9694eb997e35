"""Optimizer steps of one parameter by PyTorch's operators, in place, on any device.

Arithmetic is in float32 or wider for every storage dtype, so that 16-bit numbers are rounded only when they are stored.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class AdamSettings:
    """Settings of one Adam step. If ``decoupled``, decay shrinks the parameter; else it is added to the gradient."""

    lr: float
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    step: int
    bias_correction: bool
    decoupled: bool

    @property
    def corrections(self) -> tuple[float, float]:
        """Return 1 - beta^step for both betas, or 1 without bias correction.

        They depend on the step number only, so two calls with one step number make the same step.
        """
        return (1 - self.beta1**self.step, 1 - self.beta2**self.step) if self.bias_correction else (1.0, 1.0)


def adam(parameter: Tensor, gradient: Tensor, mean: Tensor, square: Tensor, settings: AdamSettings) -> None:
    """Make one step of Adam or AdamW, in place."""
    g, p, m, v = (wide(tensor) for tensor in (gradient, parameter, mean, square))
    if not settings.decoupled:
        g = g + settings.weight_decay * p
    m = settings.beta1 * m + (1 - settings.beta1) * g
    v = settings.beta2 * v + (1 - settings.beta2) * g * g
    update = _direction(m, v, settings)
    if settings.decoupled:
        update = update + settings.weight_decay * p
    for target, value in ((parameter, p - settings.lr * update), (mean, m), (square, v)):
        target.copy_(value)


def adam_back(parameter: Tensor, gradient: Tensor, mean: Tensor, square: Tensor, settings: AdamSettings) -> None:
    """Undo the step that ``adam`` made with the same gradient and settings, in place."""
    g, p, m, v = (wide(tensor) for tensor in (gradient, parameter, mean, square))
    p = p + settings.lr * _direction(m, v, settings)
    if settings.decoupled:
        p = p / (1 - settings.lr * settings.weight_decay)
    else:
        g = g + settings.weight_decay * p
    m = (m - (1 - settings.beta1) * g) / settings.beta1
    v = (v - (1 - settings.beta2) * g * g) / settings.beta2
    for target, value in ((parameter, p), (mean, m), (square, v)):
        target.copy_(value)


def adagrad(parameter: Tensor, gradient: Tensor, total: Tensor, lr: float, epsilon: float, weight_decay: float) -> None:
    """Make one step of Adagrad, in place; decay is added to the gradient."""
    g, p, v = (wide(tensor) for tensor in (gradient, parameter, total))
    g = g + weight_decay * p
    v = v + g * g
    parameter.copy_(p - lr * (g / (v.sqrt() + epsilon)))
    total.copy_(v)


def lion(
    parameter: Tensor, gradient: Tensor, mean: Tensor, lr: float, beta1: float, beta2: float, weight_decay: float
) -> None:
    """Make one step of Lion, in place; the sign of 0 is 0."""
    g, p, m = (wide(tensor) for tensor in (gradient, parameter, mean))
    direction = (beta1 * m + (1 - beta1) * g).sign()
    parameter.copy_(p - lr * (direction + weight_decay * p))
    mean.copy_(beta2 * m + (1 - beta2) * g)


def wide(tensor: Tensor) -> Tensor:
    """Return ``tensor`` in float32, or in its own dtype if that is wider."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _direction(mean: Tensor, square: Tensor, settings: AdamSettings) -> Tensor:
    first, second = settings.corrections
    return (mean / first) / ((square / second).sqrt() + settings.epsilon)
