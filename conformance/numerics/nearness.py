"""How near a tensor has to be to its float64 oracle where something is computed in parts; numbers in nearness.toml."""

from __future__ import annotations

from enum import Enum
from typing import Any

import torch

from conformance.numerics.beside import table_beside
from conformance.numerics.budgets import unit_roundoff

#: The metric that says how much of its bound the worst comparison of a case has needed.
METRIC = "error_of_bound"


class Near(Enum):
    """What was computed. The section of nearness.toml has the same name."""

    SUMS = "sums"
    FORWARD = "forward"
    GRADIENTS = "gradients"
    TRAJECTORY = "trajectory"


def near(
    check: Any,
    what: str,
    actual: torch.Tensor,
    exact: torch.Tensor,
    kind: Near,
    dtype: torch.dtype | None = None,
    largest: float | None = None,
) -> None:
    """Count one comparison: ``actual`` has the oracle's shape, and its worst element is within the bound of ``kind``.

    ``exact`` is on the host. ``dtype`` is what was computed in, where that is not the result's own;
    ``largest`` is what the error is divided by, where that is not the oracle's largest element.
    """
    check.that(actual.shape == exact.shape, f"{what} has shape {tuple(actual.shape)}, not {tuple(exact.shape)}")
    bound = bound_of(kind, dtype or actual.dtype)
    error = relative_error(actual.detach().cpu().double(), exact.detach().double(), largest)
    check.that(error <= bound, f"{what} is off by {error:.3g} of its largest element, allowed {bound:.3g}")
    check.metric(METRIC, max(float(check.metrics.get(METRIC, 0.0)), round(error / bound, 6)))


def bound_of(kind: Near, dtype: torch.dtype) -> float:
    """The largest error of an element over the largest element."""
    row = table_beside(__file__, "nearness.toml")[kind.value]
    return float(row["narrow" if dtype.itemsize < 4 else "wide"]) * unit_roundoff(dtype)


def relative_error(value: torch.Tensor, exact: torch.Tensor, largest: float | None = None) -> float:
    """The largest error of an element over the largest element; NaN where the value has one, 0 if there is none."""
    if not exact.numel():
        return 0.0
    worst = float((value - exact).abs().max())
    largest = float(exact.abs().max()) if largest is None else largest
    return worst / largest if largest else worst
