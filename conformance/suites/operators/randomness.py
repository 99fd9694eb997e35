"""Operators that draw random numbers: repeatable under a seed, different under another, distributed as the host's."""

from __future__ import annotations

import math

import torch

from conformance.numerics.bits import plain, same_bits
from conformance.numerics.trees import tensors

from . import execution
from .execution import Sample, call
from .seeding import reseed
from .settings import limits

#: Several, because pooling over random windows may choose the same maxima twice.
OTHER_SEEDS = (2, 3, 4)


def check(info, judge, sample: Sample, expected) -> None:
    """Metadata as the host's; the same seed gives the same bits, another seed others; statistics agree."""
    place = str(sample)
    first = draw(judge.watches.execute, info, sample, judge.device, seed=1)
    judge.metadata(place, first, expected)
    again = draw(execution.execute, info, sample, judge.device, seed=1)
    judge.check.that(_same(first, again), f"{place}: the same seed gave other numbers")
    judge.samples += 1
    judge.drawn.add(sample.number)
    if _is_informative(expected):
        others = (draw(execution.execute, info, sample, judge.device, seed=seed) for seed in OTHER_SEEDS)
        differ = any(not _same(first, other) for other in others) or _host_repeats(info, sample)
        judge.check.that(differ, f"{place}: another seed gave the same numbers")
        if len(judge.drawn) <= limits().random.samples:
            check_statistics(info, judge, sample)


def _host_repeats(info, sample: Sample) -> bool:
    """Whether this sample's result may hide the draw, as windows that nearly fill the input do."""
    first, *others = (draw(call, info, sample, torch.device("cpu"), seed=seed) for seed in (1, *OTHER_SEEDS))
    return any(_same(first, other) for other in others)


def draw(runner, info, sample: Sample, device: torch.device, seed: int):
    arguments = sample.on(device)
    reseed(seed, device)
    return runner(info.op, arguments)


def _same(left, right) -> bool:
    return all(same_bits(plain(a), plain(b)) for a, b in zip(tensors(left), tensors(right), strict=True))


def _is_informative(expected) -> bool:
    """Enough numbers that two seeds cannot agree by chance."""
    return any(tensor.numel() >= 16 for tensor in tensors(expected))


def check_statistics(info, judge, sample: Sample) -> None:
    """Share of zeros (dropout rates), mean and mean square of the first output, over many calls on either side."""
    repeats, allowed = range(limits().random.calls), limits().random.sigmas
    # Disjoint seeds: two generators that are the same algorithm must not agree by drawing the same numbers.
    ours = [_statistics(draw(execution.execute, info, sample, judge.device, seed=100 + i)) for i in repeats]
    theirs = [_statistics(draw(call, info, sample, torch.device("cpu"), seed=5000 + i)) for i in repeats]
    for name, left, right in zip(STATISTICS, torch.stack(ours).T, torch.stack(theirs).T, strict=True):
        distance = _distance(left, right)
        close = distance <= allowed
        judge.check.that(close, f"{sample}: {name} differs by {distance:.1f} standard errors, allowed {allowed}")


STATISTICS = ("the share of zeros", "the mean", "the mean square")


def _statistics(result) -> torch.Tensor:
    """Of one call: numbers within a call may depend on each other, as channels that are dropped as a whole do."""
    tensor = plain(tensors(result)[0])
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    numbers = tensor.to(torch.float64).nan_to_num(0, 0, 0)
    return torch.stack([(numbers == 0).double().mean(), numbers.mean(), (numbers * numbers).mean()])


def _distance(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Difference of two means in standard errors."""
    error = math.sqrt(float((ours.var() + theirs.var()) / ours.numel()))
    difference = abs(float(ours.mean() - theirs.mean()))
    if error == 0 or not math.isfinite(error):
        return 0.0 if difference <= 1e-6 * (1 + abs(float(theirs.mean()))) else float("inf")
    return difference / error
