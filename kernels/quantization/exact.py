"""Quantization in float64 on the host, for oracles: written from the formulas, independently of the implementations.

Rounding is not continuous. If a number is so near to a tie that float32 arithmetic may cross it, both neighbouring
codes are right. ``slack`` is the distance of these codes, and 0 everywhere else. If the step is a power of two, the
arithmetic has no rounding error, so every code is exact, also at ties.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

#: Roundings of float32 between a number and its position in steps: the range, the step, the quotient, the difference.
ROUNDINGS = 4
_U = 2.0**-24  # unit roundoff of float32


@dataclass(frozen=True)
class ExactQuantization:
    """Codes of shape (groups, elements), the ``slack`` of each code, and ``step`` and ``offset`` of each group."""

    codes: Tensor
    slack: Tensor
    step: Tensor
    offset: Tensor

    @property
    def values(self) -> Tensor:
        """Return the numbers that the codes stand for."""
        return self.codes * self.step + self.offset

    @property
    def scale(self) -> Tensor:
        """Return the sum of the magnitudes of the terms of each value."""
        return (self.codes * self.step).abs() + self.offset.abs()


def rows(tensor: Tensor, groups: int) -> Tensor:
    """Return consecutive parts of equal size as rows (groups, elements), in float64."""
    return tensor.detach().double().view(groups, tensor.numel() // groups)


def quantize(numbers: Tensor, num_bits: int, asymmetric: bool, noise: Tensor | float = 0.0) -> ExactQuantization:
    """Return the signed codes of rows of numbers. ``noise`` is the absolute error that the numbers already have."""
    half = float(1 << (num_bits - 1))
    top, bottom = numbers.max(1, keepdim=True).values, numbers.min(1, keepdim=True).values
    span = top - bottom if asymmetric else 2.0 * torch.maximum(top.abs(), bottom.abs())
    offset = 0.5 * (top + bottom) if asymmetric else torch.zeros_like(top)
    # A group of equal numbers has no step; with 1 all of its codes are 0.
    step = torch.where(span > 0.0, span / (2.0 * half), 1.0)
    position = (numbers - offset) / step
    moved = ROUNDINGS * _U * (position.abs() + (numbers.abs() + offset.abs()) / step * float(asymmetric))
    # A division by a power of two is exact, so ties stay ties.
    moved = torch.where(_is_power_of_two(step) & (offset == 0.0), 0.0, moved)
    codes, slack = rounded(position, -half, half - 1.0, moved + noise / step)
    return ExactQuantization(codes, slack, step, offset)


def rounded(position: Tensor, low: float, high: float, moved: Tensor) -> tuple[Tensor, Tensor]:
    """Return positions rounded to the nearest integer within the limits (ties to even), and the slack.

    ``moved`` is how far float32 arithmetic may move a position.
    """
    below, above = position.floor().clamp(low, high), position.ceil().clamp(low, high)
    tied = ((position - position.floor()) - 0.5).abs() <= moved
    return position.round().clamp(low, high), torch.where(tied & (moved > 0.0), above - below, 0.0)


def _is_power_of_two(step: Tensor) -> Tensor:
    return torch.frexp(step).mantissa == 0.5
