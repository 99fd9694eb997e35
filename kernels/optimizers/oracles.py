"""Oracles of optimizer steps in float64 on the host, and the tensors and error budget of their samples.

The oracles are written from the formulas, independently of the implementations. Each returns new values, and for each
value the sum of the magnitudes of its terms.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from conformance.kernels.optimizers.portable import AdamSettings
from conformance.kernels.specification import ErrorBudget, Expected

BUDGET = ErrorBudget(
    rounding=1.0,
    conditioning=16.0,
    source="one rounding to the storage dtype, and a dozen float32 operations each within u of the terms they add "
    "(Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., 3.1); betas are exact in float32",
)


def away_from_zero(generator: torch.Generator, size: int) -> Tensor:
    """Return float64 of shape (size,), of either sign, with magnitudes from 1/8 to 1."""
    magnitude = 0.125 + 0.875 * torch.rand(size, generator=generator, dtype=torch.float64)
    return magnitude * (2 * torch.randint(0, 2, (size,), generator=generator) - 1)


def adam(old: Tensor, grad: Tensor, mean: Tensor, square: Tensor, given: AdamSettings) -> tuple[Expected, ...]:
    """Return parameter, first and second moment after a step; moments by increments: m + (1 - beta)(g - m)."""
    old, grad, mean, square = (tensor.double() for tensor in (old, grad, mean, square))
    coupled, shrink = (0.0, given.weight_decay) if given.decoupled else (given.weight_decay, 0.0)
    direction, size = torch.add(grad, old, alpha=coupled), grad.abs() + coupled * old.abs()
    first = mean + (1.0 - given.beta1) * (direction - mean)
    second = square + (1.0 - given.beta2) * (direction.square() - square)
    first_scale = given.beta1 * mean.abs() + (1.0 - given.beta1) * size
    second_scale = given.beta2 * square.abs() + (1.0 - given.beta2) * size.square()
    moved, terms = _move(first, first_scale, second, second_scale, given)
    new = old * (1.0 - given.lr * shrink) - given.lr * moved
    scale = old.abs() * (1.0 + given.lr * shrink) + given.lr * terms
    return Expected(new, scale), Expected(first, first_scale), Expected(second, second_scale)


def adam_back(new: Tensor, grad: Tensor, mean: Tensor, square: Tensor, given: AdamSettings) -> tuple[Expected, ...]:
    """Return parameter, first and second moment before a step; errors of the moments grow by 1/beta."""
    new, grad, mean, square = (tensor.double() for tensor in (new, grad, mean, square))
    moved, terms = _move(mean, mean.abs(), square, square.abs(), given)
    coupled, kept = (0.0, 1.0 - given.lr * given.weight_decay) if given.decoupled else (given.weight_decay, 1.0)
    old, old_scale = (new + given.lr * moved) / kept, (new.abs() + given.lr * terms) / kept
    total, total_scale = grad + coupled * old, grad.abs() + coupled * old_scale
    first = mean / given.beta1 - total * ((1.0 - given.beta1) / given.beta1)
    second = square / given.beta2 - total.square() * ((1.0 - given.beta2) / given.beta2)
    first_scale = mean.abs() / given.beta1 + total_scale * ((1.0 - given.beta1) / given.beta1)
    second_scale = square.abs() / given.beta2 + total_scale.square() * ((1.0 - given.beta2) / given.beta2)
    return Expected(old, old_scale), Expected(first, first_scale), Expected(second, second_scale)


def adagrad(
    old: Tensor, grad: Tensor, total: Tensor, lr: float, epsilon: float, weight_decay: float
) -> tuple[Expected, ...]:
    """Return parameter and sum of squares after a step."""
    old, grad, total = (tensor.double() for tensor in (old, grad, total))
    direction, size = torch.add(grad, old, alpha=weight_decay), grad.abs() + weight_decay * old.abs()
    squares, squares_scale = total + direction.square(), total.abs() + size.square()
    bottom = squares.sqrt() + epsilon
    # Relative errors of the sum; 0 / 0 where there never was a gradient.
    spread = torch.nan_to_num(squares_scale / squares, nan=1.0, posinf=1.0)
    moved = direction / bottom
    scale = old.abs() + lr * (size / bottom + moved.abs() * spread)
    return Expected(old - lr * moved, scale), Expected(squares, squares_scale)


def lion(
    old: Tensor, grad: Tensor, mean: Tensor, lr: float, beta1: float, beta2: float, weight_decay: float
) -> tuple[Expected, ...]:
    """Return parameter and moment after a step.

    Samples keep the blend of gradient and moment exactly 0 or well away from it: close to 0 rounding decides its sign.
    """
    old, grad, mean = (tensor.double() for tensor in (old, grad, mean))
    blend = grad + beta1 * (mean - grad)
    direction = torch.where(blend > 0, 1.0, torch.where(blend < 0, -1.0, blend))  # keeps 0, and NaN
    new = old - lr * weight_decay * old - lr * direction
    follow = grad + beta2 * (mean - grad)
    return (
        Expected(new, old.abs() * (1 + lr * weight_decay) + lr),
        Expected(follow, beta2 * mean.abs() + (1 - beta2) * grad.abs()),
    )


def _move(
    first: Tensor, first_scale: Tensor, second: Tensor, second_scale: Tensor, given: AdamSettings
) -> tuple[Tensor, Tensor]:
    """Return Adam's update without the learning rate, and the magnitudes of its terms."""
    correct1, correct2 = 1.0, 1.0
    if given.bias_correction:
        # 1 - beta^t, without the cancellation of a subtraction
        correct1, correct2 = (-math.expm1(given.step * math.log(beta)) for beta in (given.beta1, given.beta2))
    bottom = correct1 * (torch.sqrt(second / correct2) + given.epsilon)
    moved = first / bottom
    # The root halves a relative error of the second moment; this bound counts all of it.
    spread = torch.nan_to_num(second_scale / second, nan=1.0, posinf=1.0)
    return moved, first_scale / bottom + moved.abs() * spread
