"""Quantization in float64 on the host, for oracles: from the formulas, and written on its own.

Rounding jumps: where a number lies as near to a tie as float32 arithmetic may move it, both neighbours are right.
``slack`` says how far apart they are there, and is 0 everywhere else. A step that is a power of two moves nothing, so
there every code is exact, ties included.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

#: Roundings of float32 between a number and its position in steps: the range, the step, the quotient, the difference.
ROUNDINGS = 4
_U = 2.0**-24


@dataclass(frozen=True)
class Exact:
    """Of shape (groups, elements): codes, how far another right code may be off, and what a code stands for."""

    codes: Tensor
    slack: Tensor
    step: Tensor
    offset: Tensor

    @property
    def values(self) -> Tensor:
        return self.codes * self.step + self.offset

    @property
    def scale(self) -> Tensor:
        """The magnitudes of the terms of a value."""
        return (self.codes * self.step).abs() + self.offset.abs()


def rows(tensor: Tensor, groups: int) -> Tensor:
    """Consecutive parts, in float64."""
    return tensor.detach().double().view(groups, tensor.numel() // groups)


def quantize(numbers: Tensor, num_bits: int, asymmetric: bool, noise: Tensor | float = 0.0) -> Exact:
    """Signed codes. ``noise`` is the absolute error that the numbers themselves carry already."""
    half = float(1 << (num_bits - 1))
    top, bottom = numbers.max(1, keepdim=True).values, numbers.min(1, keepdim=True).values
    span = top - bottom if asymmetric else 2.0 * torch.maximum(top.abs(), bottom.abs())
    offset = 0.5 * (top + bottom) if asymmetric else torch.zeros_like(top)
    step = torch.where(span > 0.0, span / (2.0 * half), 1.0)
    position = (numbers - offset) / step
    moved = ROUNDINGS * _U * (position.abs() + (numbers.abs() + offset.abs()) / step * float(asymmetric))
    moved = torch.where(_is_power_of_two(step) & (offset == 0.0), 0.0, moved)
    codes, slack = rounded(position, -half, half - 1.0, moved + noise / step)
    return Exact(codes, slack, step, offset)


def rounded(position: Tensor, low: float, high: float, moved: Tensor) -> tuple[Tensor, Tensor]:
    """To the nearest integer, ties to even, within the limits; and the slack."""
    below, above = position.floor().clamp(low, high), position.ceil().clamp(low, high)
    tied = ((position - position.floor()) - 0.5).abs() <= moved
    return position.round().clamp(low, high), torch.where(tied & (moved > 0.0), above - below, 0.0)


def _is_power_of_two(step: Tensor) -> Tensor:
    return torch.frexp(step).mantissa == 0.5
