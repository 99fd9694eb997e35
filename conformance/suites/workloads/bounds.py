"""Bounds of the workloads, read from bounds.toml (by dtype) and learned.toml (by model)."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from conformance.numerics.budgets import load_table


@dataclass(frozen=True)
class Bounds:
    """Bounds of one dtype; bounds.toml explains each number."""

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
    """Return the bounds of ``dtype``, for example ``"bfloat16"``."""
    return Bounds(**load_table(__file__, "bounds.toml")[dtype])


def learned(subject: str, name: str) -> float:
    """Return one number of learned.toml."""
    return load_table(__file__, "learned.toml")[subject][name]
