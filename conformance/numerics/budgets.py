"""Error budgets: how far a result may be from the exact value, by operator class. The numbers are in budgets.toml."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from enum import Enum

import torch

from conformance.numerics.beside import table_beside

#: Complex arithmetic makes one product of four; its error constant grows by 2*sqrt(2) (Higham, lemma 3.5).
COMPLEX_FACTOR = 2.83


class OpClass(Enum):
    """How an operator's error grows. The section of budgets.toml has the same name."""

    EXACT = "exact"
    ELEMENTWISE = "elementwise"
    TRANSCENDENTAL = "transcendental"
    REDUCTION = "reduction"
    CONTRACTION = "contraction"
    NARROW = "narrow"
    ITERATIVE = "iterative"


@dataclass(frozen=True)
class Budget:
    """One row of budgets.toml; the formula stands at the top of that file."""

    rounding: float
    conditioning: float
    length: float
    host: float
    accumulator: str = "wide"

    def bound(self, exact: torch.Tensor, response: torch.Tensor, dtype: torch.dtype, n: float) -> torch.Tensor:
        """The largest allowed error of every element: float64, the shape of ``exact``."""
        factor: float = COMPLEX_FACTOR if dtype.is_complex else 1.0
        rounding = self.rounding * unit_roundoff(dtype) * exact.abs()
        accumulated = unit_roundoff(dtype) if self.accumulator == "result" else accumulator_roundoff(dtype)
        conditioning = self.conditioning * max(n, 1.0) ** self.length * accumulated * response
        bound: torch.Tensor = (rounding + conditioning) * factor + floor(dtype)
        return bound


@functools.cache
def budget_of(op_class: OpClass) -> Budget:
    return _table()[op_class.value]


@functools.cache
def _table() -> dict[str, Budget]:
    return {name: Budget(**row) for name, row in table_beside(__file__, "budgets.toml").items()}


@functools.cache
def unit_roundoff(dtype: torch.dtype) -> float:
    """Half the distance from 1 to the next number: 2^-24 for float32."""
    return float(torch.finfo(dtype).eps) / 2


@functools.cache
def accumulator_roundoff(dtype: torch.dtype) -> float:
    return min(unit_roundoff(dtype), unit_roundoff(torch.float32))


@functools.cache
def floor(dtype: torch.dtype) -> float:
    """The absolute error that is never judged: one smallest normal; two subnormal steps in float16."""
    limits = torch.finfo(dtype)
    if dtype in (torch.float16, torch.complex32):
        return 2 * float(limits.smallest_normal) * float(limits.eps)
    return float(limits.smallest_normal)
