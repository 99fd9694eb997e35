"""Running error analysis: exact values with a bound on the error of float32 arithmetic, for kernels of several steps.

Each operation adds its own roundings and propagates those of its operands (Higham, Accuracy and Stability of Numerical
Algorithms, 2nd ed., 3.3). ``stored`` marks the places where a kernel may keep an intermediate result in the tensors'
dtype. A kernel that accumulates in 16 bits elsewhere exceeds the bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from conformance.kernels.specification import Expected

#: Unit roundoff of float32, in which all arithmetic is done.
UNIT = 2.0**-24


def unit_of(dtype: torch.dtype) -> float:
    """Return the unit roundoff of ``dtype``: half the distance from 1 to the next number."""
    return float(torch.finfo(dtype).eps) / 2


@dataclass(frozen=True)
class BoundedValue:
    """Exact ``value`` in float64, and for each element the largest absolute ``error`` that rounding explains."""

    value: Tensor
    error: Tensor

    @classmethod
    def exact(cls, tensor: Tensor) -> BoundedValue:
        """Return ``tensor`` as an input, which has no error."""
        wide = tensor.double()
        return cls(wide, torch.zeros_like(wide))

    def __add__(self, other: BoundedValue) -> BoundedValue:
        return _rounded(self.value + other.value, self.error + other.error)

    def __sub__(self, other: BoundedValue) -> BoundedValue:
        return _rounded(self.value - other.value, self.error + other.error)

    def __mul__(self, other: BoundedValue) -> BoundedValue:
        error = self.value.abs() * other.error + self.error * other.value.abs() + self.error * other.error
        return _rounded(self.value * other.value, error)

    def scaled(self, factor: float) -> BoundedValue:
        """Return the product with a number."""
        return _rounded(self.value * factor, self.error * abs(factor), 2)

    def contracted(self, equation: str, other: BoundedValue, length: int) -> BoundedValue:
        """Return sums of ``length`` products by torch.einsum's ``equation``; their own error is length u sum |a b|."""
        size, other_size = self.value.abs() + self.error, other.value.abs() + other.error
        error = torch.einsum(equation, size, other.error) + torch.einsum(equation, self.error, other_size)
        own = torch.einsum(equation, size, other_size) * (length + 1) * UNIT
        return _rounded(torch.einsum(equation, self.value, other.value), error + own)

    def averaged(self) -> BoundedValue:
        """Return the mean over the last dimension, which is kept with size 1."""
        length = self.value.shape[-1]
        error = (self.error + self.value.abs() * length * UNIT).mean(-1, keepdim=True)
        return _rounded(self.value.mean(-1, keepdim=True), error)

    def through(self, function: Callable[[Tensor], Tensor], steepness: float = 1.2, roundings: int = 8) -> BoundedValue:
        """Return ``function`` of the value: a smooth function of one argument with slopes of at most ``steepness``."""
        found = function(self.value)
        return _rounded(found, steepness * self.error + roundings * UNIT * self.value.abs(), roundings)

    def reciprocal_root(self) -> BoundedValue:
        """Return 1 / sqrt of a positive value."""
        found = self.value.rsqrt()
        return _rounded(found, 0.5 * self.error * found**3, 4)

    def stored(self, dtype: torch.dtype) -> BoundedValue:
        """Return the value as it is after a store in ``dtype``: with one more rounding, to that dtype."""
        return _rounded(self.value, self.error, unit_of(dtype) / UNIT, _smallest(dtype))

    def moved(self, change: Callable[[Tensor], Tensor]) -> BoundedValue:
        """Return the value with its elements moved by ``change``: a reshape, a permutation, a slice."""
        return BoundedValue(change(self.value), change(self.error))

    def expected(self, dtype: torch.dtype) -> Expected:
        """Return the oracle's answer for a result that is stored in ``dtype``."""
        last = self.stored(dtype)
        return Expected(last.value, allowed=last.error, dtype=dtype)


def _smallest(dtype: torch.dtype) -> float:
    """Return the largest loss by flushing subnormal numbers to zero; float16 keeps them, so two of its steps there."""
    limits = torch.finfo(dtype)
    return float(limits.tiny) * (2 * float(limits.eps) if dtype is torch.float16 else 1.0)


def _rounded(value: Tensor, error: Tensor, roundings: float = 1.0, floor: float = 0.0) -> BoundedValue:
    # Infinity and NaN must be met exactly: there is no distance to them.
    own = error + roundings * UNIT * (value.abs() + error) + floor
    return BoundedValue(value, torch.where(value.isfinite(), own.nan_to_num(posinf=0.0), 0.0))
