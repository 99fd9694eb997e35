"""Exact values that carry how far float32 arithmetic may be from them: the bounds of kernels with several steps.

Each operation adds its own roundings and passes on those of its operands (running error analysis: Higham, Accuracy and
Stability of Numerical Algorithms, 2nd ed., 3.3). Where a kernel may keep an intermediate result in the tensors' dtype,
``stored`` says so, and only there: who adds up in 16 bits exceeds the bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from conformance.kernels.specification import Expected

#: The unit roundoff of float32, in which all arithmetic is done.
UNIT = 2.0**-24


def unit_of(dtype: torch.dtype) -> float:
    return float(torch.finfo(dtype).eps) / 2


@dataclass(frozen=True)
class Bounded:
    """``value`` in float64, and the largest absolute ``error`` of each element that rounding explains."""

    value: Tensor
    error: Tensor

    @classmethod
    def exact(cls, tensor: Tensor) -> Bounded:
        """An input: what is stored is what is meant."""
        wide = tensor.double()
        return cls(wide, torch.zeros_like(wide))

    def __add__(self, other: Bounded) -> Bounded:
        return _rounded(self.value + other.value, self.error + other.error)

    def __sub__(self, other: Bounded) -> Bounded:
        return _rounded(self.value - other.value, self.error + other.error)

    def __mul__(self, other: Bounded) -> Bounded:
        error = self.value.abs() * other.error + self.error * other.value.abs() + self.error * other.error
        return _rounded(self.value * other.value, error)

    def scaled(self, factor: float) -> Bounded:
        """Times a number."""
        return _rounded(self.value * factor, self.error * abs(factor), 2)

    def contracted(self, equation: str, other: Bounded, length: int) -> Bounded:
        """A sum of ``length`` products, as torch.einsum writes it. Its own error: length u sum |a b|."""
        size, brought = self.value.abs() + self.error, other.value.abs() + other.error
        error = torch.einsum(equation, size, other.error) + torch.einsum(equation, self.error, brought)
        own = torch.einsum(equation, size, brought) * (length + 1) * UNIT
        return _rounded(torch.einsum(equation, self.value, other.value), error + own)

    def averaged(self) -> Bounded:
        """The mean over the last dimension, which stays."""
        length = self.value.shape[-1]
        error = (self.error + self.value.abs() * length * UNIT).mean(-1, keepdim=True)
        return _rounded(self.value.mean(-1, keepdim=True), error)

    def through(self, function: Callable[[Tensor], Tensor], steepness: float = 1.2, roundings: int = 8) -> Bounded:
        """A smooth function of one argument, whose slope is nowhere larger than ``steepness``."""
        found = function(self.value)
        return _rounded(found, steepness * self.error + roundings * UNIT * self.value.abs(), roundings)

    def reciprocal_root(self) -> Bounded:
        """1 / sqrt of a positive value."""
        found = self.value.rsqrt()
        return _rounded(found, 0.5 * self.error * found**3, 4)

    def stored(self, dtype: torch.dtype) -> Bounded:
        """As it is after it was written to memory in that dtype."""
        return _rounded(self.value, self.error, unit_of(dtype) / UNIT, _smallest(dtype))

    def moved(self, change: Callable[[Tensor], Tensor]) -> Bounded:
        """Elements at other places: a reshape, a permutation, a part."""
        return Bounded(change(self.value), change(self.error))

    def expected(self, dtype: torch.dtype) -> Expected:
        """What a result in that dtype is held against."""
        last = self.stored(dtype)
        return Expected(last.value, allowed=last.error, dtype=dtype)


def _smallest(dtype: torch.dtype) -> float:
    """What may be lost by flushing to zero: subnormal numbers, but in float16, where they are in common use."""
    limits = torch.finfo(dtype)
    return float(limits.tiny) * (2 * float(limits.eps) if dtype is torch.float16 else 1.0)


def _rounded(value: Tensor, error: Tensor, roundings: float = 1.0, floor: float = 0.0) -> Bounded:
    # What is infinite or NaN has to be so exactly: there is no distance to it.
    own = error + roundings * UNIT * (value.abs() + error) + floor
    return Bounded(value, torch.where(value.isfinite(), own.nan_to_num(posinf=0.0), 0.0))
