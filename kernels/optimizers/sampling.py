"""What samples of optimizer steps are made of, and how far a step may be from its oracle."""

from __future__ import annotations

import torch
from torch import Tensor

from conformance.kernels.specification import ErrorBudget

BUDGET = ErrorBudget(
    rounding=1.0,
    conditioning=16.0,
    source="one rounding to the storage dtype, and a dozen float32 operations each within u of the terms they add "
    "(Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., 3.1); betas are exact in float32",
)


def away_from_zero(generator: torch.Generator, size: int) -> Tensor:
    """float64 of shape (size,): of either sign, between 1/8 and 1 in magnitude."""
    magnitude = 0.125 + 0.875 * torch.rand(size, generator=generator, dtype=torch.float64)
    return magnitude * (2 * torch.randint(0, 2, (size,), generator=generator) - 1)
