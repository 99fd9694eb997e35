"""The bounds of the workloads, as data: bounds.toml by dtype, learned.toml by model."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from conformance.numerics.beside import table_beside


@dataclass(frozen=True)
class Bounds:
    """One dtype's row of bounds.toml, which says what each number is."""

    gradients: float
    loss: float
    gradient_norm: float
    parameters: float
    drift: float
    logits: float
    near_tie: float
    host: float


@functools.cache
def bounds_of(dtype: str) -> Bounds:
    return Bounds(**table_beside(__file__, "bounds.toml")[dtype])


def learned(subject: str, name: str) -> float:
    """One number of learned.toml."""
    return table_beside(__file__, "learned.toml")[subject][name]
