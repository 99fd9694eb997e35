"""The bounds of the workloads, as data: bounds.toml by dtype, learned.toml by model."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib


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
    return Bounds(**_read("bounds.toml")[dtype])


def learned(subject: str, name: str) -> float:
    """One number of learned.toml."""
    return _read("learned.toml")[subject][name]


@functools.cache
def _read(file: str) -> dict[str, dict[str, float]]:
    return tomllib.loads(Path(__file__).with_name(file).read_text(encoding="utf-8"))
