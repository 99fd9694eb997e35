"""Relative-error check against a float64 oracle, for results computed in parts. The bounds are in nearness.toml."""

from __future__ import annotations

from enum import Enum
from typing import Any

import torch

from conformance.numerics.budgets import load_table, unit_roundoff

#: Metric with the largest error of a case, divided by its bound.
METRIC = "error_of_bound"


class Near(Enum):
    """Kind of result; the section of nearness.toml has the same name."""

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
    *,
    by_device: bool = False,
) -> None:
    """Check that ``actual`` has the shape of ``exact`` and a relative error within the bound of ``kind``.

    ``exact`` is the oracle's result on the host. ``dtype`` is the dtype of the computation; the default is that of
    ``actual``. ``largest`` divides the error; the default is the largest magnitude in ``exact``. ``what`` names the
    tensor in messages. ``by_device`` says that ``exact`` depends on results of the device, so that the comparison
    answers no challenge. The checker raises AssertionError and keeps the metric ``METRIC``.
    """
    check.that(actual.shape == exact.shape, f"{what} has shape {tuple(actual.shape)}, not {tuple(exact.shape)}")
    bound = bound_of(kind, dtype or actual.dtype)
    found = actual.detach().cpu() if by_device else check.result(actual)
    error = relative_error(found.double(), exact.detach().double(), largest)
    check.that(error <= bound, f"{what} is off by {error:.3g} of its largest element, allowed {bound:.3g}")
    check.metric(METRIC, max(float(check.metrics.get(METRIC, 0.0)), round(error / bound, 6)))


def bound_of(kind: Near, dtype: torch.dtype) -> float:
    """Return the largest allowed relative error, as :func:`relative_error` computes it."""
    row = load_table(__file__, "nearness.toml")[kind.value]
    return float(row["narrow" if dtype.itemsize < 4 else "wide"]) * unit_roundoff(dtype)


def relative_error(value: torch.Tensor, exact: torch.Tensor, largest: float | None = None) -> float:
    """Return the largest error divided by the largest exact magnitude; 0 for empty tensors, NaN if a value is NaN."""
    if not exact.numel():
        return 0.0
    worst = float((value - exact).abs().max())
    largest = float(exact.abs().max()) if largest is None else largest
    # Where the exact result is zero everywhere, the absolute error has to do.
    return worst / largest if largest else worst
