"""Laws of modules that draw random numbers: where results may lie, how many elements are dropped, repeatability."""

from __future__ import annotations

import copy
import functools
import math
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from conformance.numerics.budgets import load_table, unit_roundoff
from conformance.numerics.compare import plain, same_bits
from conformance.suites.operators.calls.execution import reseed

#: Roundings of a scaled element.
_ROUNDINGS = 8


@functools.cache
def _limits() -> SimpleNamespace:
    return SimpleNamespace(**load_table(__file__, "limits.toml")["laws"])


def check(check: Any, label: str, place: SimpleNamespace) -> None:
    """Check a module that draws: one seed gives one result, another seed another, and the law of its class holds."""
    result, gradient, cotangent, value = _drawn(place, seed=3)
    again = _drawn(place, seed=3)
    others = [_drawn(place, seed=seed)[0] for seed in (4, 5, 6)]
    check.that(same_bits(result, again[0]), f"{label}: one seed gave two results")
    check.that(same_bits(gradient, again[1]), f"{label}: one seed gave two gradients")
    if result.numel() >= 16:
        # Pooling over a whole window may choose the same maxima under several seeds.
        changed = any(not same_bits(result, other) for other in others)
        check.that(changed or isinstance(place.original, _POOLS), f"{label}: other seeds gave the same result")
    law = next((law for kinds, law in _LAWS if isinstance(place.original, kinds)), None)
    if law is not None:
        law(check, label, place, SimpleNamespace(out=result, gradient=gradient, cotangent=cotangent, x=value))


def _drawn(place: SimpleNamespace, seed: int) -> tuple[torch.Tensor, ...]:
    """Return the first result, the gradient of the first input, the cotangent and the input in float64 on the host."""
    module = copy.deepcopy(place.original).to(device=place.device, dtype=place.dtype)
    inputs, named, wanted = place.call.on(place.device, place.dtype)
    value = plain(wanted[0]).double().clone()
    reseed(seed, place.device)
    out = module(*inputs, **named)
    out = out[0] if isinstance(out, tuple) else out
    cotangent = torch.ones(out.shape) + torch.arange(out.numel()).reshape(out.shape) % 5
    out.backward(cotangent.to(out))
    return plain(out).double(), plain(wanted[0].grad).double(), cotangent.double(), value


def _near(actual: torch.Tensor, expected: torch.Tensor, place: SimpleNamespace) -> torch.Tensor:
    """Return where two tensors are equal up to a few roundings."""
    size = expected.abs().max() if expected.numel() else 0.0
    return (actual - expected).abs() <= _ROUNDINGS * unit_roundoff(place.dtype) * (expected.abs() + 0.1 * size)


def _dropout(check: Any, label: str, place: SimpleNamespace, run: SimpleNamespace) -> None:
    """Check that elements or whole channels are 0 or scaled, with a mask that the gradient shares."""
    p, scale = place.original.p, 1 / (1 - place.original.p)
    kept = run.gradient != 0  # no cotangent is 0
    kept = kept if isinstance(place.original, nn.Dropout) else _of_channels(check, label, kept)
    _mask_is_fair(check, label, kept, p)
    kept = kept.expand_as(run.out)
    right = _near(run.out, torch.where(kept, run.x * scale, 0.0), place)
    check.that(bool(right.all()), f"{label}: {int((~right).sum())} elements are neither 0 nor scaled by {scale:g}")
    right = _near(run.gradient, torch.where(kept, run.cotangent * scale, 0.0), place)
    check.that(bool(right.all()), f"{label}: {int((~right).sum())} gradients do not have the mask of the result")


def _alpha_dropout(check: Any, label: str, place: SimpleNamespace, run: SimpleNamespace) -> None:
    """Check that dropped elements have one value, and the kept ones are one linear function of the input."""
    p, alpha = place.original.p, 1.7580993408473766  # SELU's scale times its alpha; Klambauer et al., 2017
    a = 1 / math.sqrt((alpha * alpha * p + 1) * (1 - p))
    shift = alpha * a * p
    kept = run.gradient != 0  # no cotangent is 0
    kept = kept if isinstance(place.original, nn.AlphaDropout) else _of_channels(check, label, kept)
    _mask_is_fair(check, label, kept, p)
    kept = kept.expand_as(run.out)
    right = _near(run.out, torch.where(kept, run.x * a + shift, shift - alpha * a), place)
    check.that(bool(right.all()), f"{label}: {int((~right).sum())} elements have no value that alpha dropout gives")
    right = _near(run.gradient, torch.where(kept, run.cotangent * a, 0.0), place)
    check.that(bool(right.all()), f"{label}: {int((~right).sum())} gradients do not have the mask of the result")


def _of_channels(check: Any, label: str, kept: torch.Tensor) -> torch.Tensor:
    """Return the mask of the channels; fail if a channel is dropped in part."""
    flat = kept.flatten(2)
    whole = flat.all(2) | ~flat.any(2)
    check.that(bool(whole.all()), f"{label}: {int((~whole).sum())} channels are dropped in part")
    return flat.any(2).reshape(*kept.shape[:2], *(1,) * (kept.dim() - 2))


def _mask_is_fair(check: Any, label: str, kept: torch.Tensor, p: float) -> None:
    """Check the share of dropped elements in all, in each half, and that neither rows nor neighbours depend."""
    rows = kept.reshape(kept.shape[0], -1).double()
    middle = rows.shape[1] // 2
    parts = {"all elements": rows, "the first half": rows[:, :middle], "the second half": rows[:, middle:]}
    for name, part in parts.items():
        _is_share(check, f"{label}: the share of elements kept of {name}", part, 1 - p)
    # Two independent draws are equal with probability p² + (1 - p)².
    alike = p * p + (1 - p) * (1 - p)
    _is_share(check, f"{label}: the share of equal neighbours", (rows[:, 1:] == rows[:, :-1]).double(), alike)
    _is_share(check, f"{label}: the share of elements equal to the row before", (rows[1:] == rows[:-1]).double(), alike)


def _is_share(check: Any, what: str, hits: torch.Tensor, p: float) -> None:
    allowed = _limits().sigmas * math.sqrt(p * (1 - p) / hits.numel())
    share = float(hits.mean())
    check.that(abs(share - p) <= allowed, f"{what} is {share:.3f}, expected {p:.3f} ± {allowed:.3f}")


def _rrelu(check: Any, label: str, place: SimpleNamespace, run: SimpleNamespace) -> None:
    """Check that positive elements are kept, and negative ones have slopes within the bounds, spread over them."""
    lower, upper = place.original.lower, place.original.upper
    positive = run.x > 0
    check.equal(run.out[positive], run.x[positive], f"{label}: positive elements")
    slopes = (run.out / run.x)[run.x < 0]
    slack = _ROUNDINGS * unit_roundoff(place.dtype)
    inside = (slopes >= lower * (1 - slack)) & (slopes <= upper * (1 + slack))
    check.that(bool(inside.all()), f"{label}: {int((~inside).sum())} slopes are not from {lower:g} to {upper:g}")
    # The mean of n uniform numbers has the standard deviation (upper - lower) / sqrt(12 n).
    allowed = _limits().sigmas * (upper - lower) / math.sqrt(12 * slopes.numel())
    mean = float(slopes.mean())
    check.that(abs(mean - (lower + upper) / 2) <= allowed + slack, f"{label}: the mean of the slopes is {mean:.3f}")
    slope = torch.where(positive, 1.0, run.out / run.x)
    right = _near(run.gradient, run.cotangent * slope, place)
    check.that(bool(right.all()), f"{label}: {int((~right).sum())} gradients do not have the slopes of the result")


def _fractional_pool(check: Any, label: str, place: SimpleNamespace, run: SimpleNamespace) -> None:
    """Check that each result is an element of its channel, and that each channel's gradients add up."""
    spatial = 2 if isinstance(place.original, nn.FractionalMaxPool2d) else 3
    out, x, gradient, cotangent = (
        tensor.flatten(-spatial).flatten(0, -2) for tensor in (run.out, run.x, run.gradient, run.cotangent)
    )
    found = (out.unsqueeze(-1) == x.unsqueeze(-2)).any(-1)
    check.that(bool(found.all()), f"{label}: {int((~found).sum())} results are not in the input's channel")
    sums = _near(gradient.sum(-1), cotangent.sum(-1), place)
    check.that(bool(sums.all()), f"{label}: the gradients of {int((~sums).sum())} channels do not add up")
    chosen = (gradient != 0) & ~(x.unsqueeze(-1) == out.unsqueeze(-2)).any(-1)
    check.that(not bool(chosen.any()), f"{label}: {int(chosen.sum())} elements have a gradient and are no result")


_POOLS = (nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)
_LAWS = (
    ((nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d), _dropout),
    ((nn.AlphaDropout, nn.FeatureAlphaDropout), _alpha_dropout),
    ((nn.RReLU,), _rrelu),
    (_POOLS, _fractional_pool),
)
