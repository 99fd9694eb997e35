"""Three-party comparisons: the accelerator and the host in the same dtype, both against float64 on the host."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .bounds import Bounds

Tensors = Mapping[str, torch.Tensor]


def within(check: Any, what: str, error: float, bound: float, host_error: float, bounds: Bounds) -> None:
    """One comparison: ``error`` ≤ max(``bound``, k · ``host_error``). An error that is NaN is too large."""
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
    """Compare a number per step; the host's error so far counts. Returns the largest relative error."""
    errors, host_errors = ([abs(a - b) / abs(b) for a, b in zip(run, oracle, strict=True)] for run in (device, host))
    so_far = itertools.accumulate(host_errors, max)
    for step, (error, host_error) in enumerate(zip(errors, so_far, strict=True), 1):
        within(check, f"{what} of step {step}", error, bound, host_error, bounds)
    return max(errors)


def check_gradients(check: Any, device: Tensors, host: Tensors, oracle: Tensors, bounds: Bounds) -> float:
    """Compare the gradient of every parameter, element by element. Returns the largest relative error."""
    errors = {name: relative_error(device[name], exact) for name, exact in oracle.items()}
    for name, error in errors.items():
        host_error = relative_error(host[name], oracle[name])
        within(check, f"the gradient of {name}", error, bounds.gradients, host_error, bounds)
    return max(errors.values())


def check_parameters(
    check: Any, device: Tensors, host: Tensors, oracle: Tensors, initial: Tensors, bounds: Bounds
) -> float:
    """Compare where every parameter has gone to. Returns the largest relative distance."""
    worst = 0.0
    for name, exact in oracle.items():
        way = (exact - initial[name]).norm()
        error, host_error = (float((run[name] - exact).norm() / way) for run in (device, host))
        within(check, f"the way of {name}", error, bounds.parameters, host_error, bounds)
        worst = max(worst, error)
    return worst


def relative_error(value: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest error of an element over the largest element; NaN where the value has one."""
    return float((value - exact).abs().max() / exact.abs().max())


def check_choices(check: Any, chosen: torch.Tensor, logits: torch.Tensor, allowed: float) -> int:
    """Each choice is the oracle's best, or less likely than it by at most ``allowed``. Returns how many near-ties.

    ``logits`` is the oracle's: (…, choices) for ``chosen`` (…).
    """
    best = logits.max(dim=-1).values
    behind = (best - logits.gather(-1, chosen.unsqueeze(-1)).squeeze(-1)) / logits.abs().max()
    worst = float(behind.max())
    position = [int(i) for i in torch.unravel_index(behind.argmax(), behind.shape)]
    check.that(worst <= allowed, f"the choice at {position} is {worst:.3g} behind the best one, a tie is {allowed:.3g}")
    return int((behind > 0).sum())


def check_same_bits(check: Any, actual: Tensors, expected: Tensors, what: str) -> None:
    for name, value in expected.items():
        check.equal(actual[name], value, f"{what}: {name}")
