"""Three-party comparisons: the accelerator and the host in the same dtype, both with float64 on the host.

Their bounds are data: bounds.toml (by dtype) and learned.toml (by model).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from conformance.numerics.budgets import load_table

Tensors = Mapping[str, torch.Tensor]


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


def within(check: Any, what: str, error: float, bound: float, host_error: float, bounds: Bounds) -> None:
    """Check that ``error`` ≤ max(``bound``, ``bounds.host`` · ``host_error``); NaN is too large."""
    allowed = max(bound, bounds.host * host_error)
    check.that(
        error <= allowed, f"{what} is off by {error:.3g}, allowed {allowed:.3g} (the host is off by {host_error:.3g})"
    )


def check_series(
    check: Any,
    what: str,
    device: Sequence[float],
    host: Sequence[float],
    oracle: Sequence[float],
    bound: float,
    bounds: Bounds,
) -> float:
    """Compare one number per step; return the largest relative error.

    The host's largest error up to a step counts for that step, because errors of training steps accumulate.
    """
    errors, host_errors = (
        [abs(value - exact) / abs(exact) for value, exact in zip(run, oracle, strict=True)] for run in (device, host)
    )
    so_far = itertools.accumulate(host_errors, max)
    for step, (error, host_error) in enumerate(zip(errors, so_far, strict=True), 1):
        within(check, f"{what} of step {step}", error, bound, host_error, bounds)
    return max(errors)


def check_gradients(check: Any, device: Tensors, host: Tensors, oracle: Tensors, bounds: Bounds) -> float:
    """Compare the gradient of every parameter element by element; return the largest relative error."""
    errors = {name: relative_error(device[name], exact) for name, exact in oracle.items()}
    for name, error in errors.items():
        host_error = relative_error(host[name], oracle[name])
        within(check, f"the gradient of {name}", error, bounds.gradients, host_error, bounds)
    return max(errors.values())


def check_parameters(
    check: Any, device: Tensors, host: Tensors, oracle: Tensors, initial: Tensors, bounds: Bounds
) -> float:
    """Compare every parameter after the steps; return the largest error.

    An error is the norm of the difference to the oracle over the norm of the oracle's update since ``initial``.
    """
    worst = 0.0
    for name, exact in oracle.items():
        update = (exact - initial[name]).norm()
        error, host_error = (float((run[name] - exact).norm() / update) for run in (device, host))
        within(check, f"the update of {name}", error, bounds.parameters, host_error, bounds)
        worst = max(worst, error)
    return worst


def relative_error(value: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the largest error of an element over the largest exact element; NaN if ``value`` has a NaN."""
    if torch.equal(value, exact):
        return 0.0  # also for tensors of zeros
    return float((value - exact).abs().max() / exact.abs().max())


def check_choices(check: Any, chosen: torch.Tensor, logits: torch.Tensor, allowed: float) -> int:
    """Check that each choice is the oracle's best or a near-tie with it; return the number of near-ties.

    ``logits`` are the oracle's, of shape (…, choices) for ``chosen`` of shape (…). In a near-tie the logit of the
    choice is below the best one by at most ``allowed`` times the largest logit.
    """
    best = logits.max(dim=-1).values
    behind = (best - logits.gather(-1, chosen.unsqueeze(-1)).squeeze(-1)) / logits.abs().max()
    worst = float(behind.max())
    position = [int(index) for index in torch.unravel_index(behind.argmax(), behind.shape)]
    check.that(worst <= allowed, f"the choice at {position} is {worst:.3g} below the best logit, allowed {allowed:.3g}")
    return int((behind > 0).sum())


def check_same_bits(check: Any, actual: Tensors, expected: Tensors, what: str) -> None:
    """Check that all tensors are equal bit for bit; ``what`` begins each message."""
    for name, value in expected.items():
        check.agree(actual[name], value, f"{what}: {name}")
