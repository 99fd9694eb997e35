"""Operators that draw random numbers: repeatable under a seed, different under another, distributed as the host's."""

from __future__ import annotations

import math

import torch

from conformance.numerics.bits import plain, same_bits
from conformance.numerics.trees import tensors

from . import execution
from .execution import Sample, call
from .settings import limits


def check(info, judge, sample: Sample, expected) -> None:
    """Metadata as the host's; the same seed gives the same bits, another seed others; statistics agree."""
    place = str(sample)
    first = draw(execution.execute, info, sample, judge.device, seed=1)
    judge.metadata(place, first, expected)
    again = draw(execution.execute, info, sample, judge.device, seed=1)
    judge.check.that(_same(first, again), f"{place}: the same seed gave other numbers")
    judge.samples += 1
    if _is_informative(expected):
        other = draw(execution.execute, info, sample, judge.device, seed=2)
        host_differs = not _same(draw(call, info, sample, torch.device("cpu"), seed=1), draw(call, info, sample, torch.device("cpu"), seed=2))
        judge.check.that(not _same(first, other) or not host_differs, f"{place}: another seed gave the same numbers")
        check_statistics(info, judge, sample, expected)


def draw(runner, info, sample: Sample, device: torch.device, seed: int):
    arguments = sample.on(device)
    torch.manual_seed(seed)
    return runner(info.op, arguments)


def _same(left, right) -> bool:
    return all(same_bits(plain(a), plain(b)) for a, b in zip(tensors(left), tensors(right), strict=True))


def _is_informative(expected) -> bool:
    """Enough numbers that two seeds cannot agree by chance."""
    return any(tensor.numel() >= 16 for tensor in tensors(expected))


def check_statistics(info, judge, sample: Sample, expected) -> None:
    """Share of zeros (dropout rates), mean and spread of the first output, pooled over several draws."""
    size = max(tensors(expected)[0].numel(), 1)
    repeats = min(limits().random.repeats, math.ceil(limits().random.draws / size))
    ours, theirs = (
        torch.cat([_numbers(draw(runner, info, sample, device, seed=100 + offset + i)) for i in range(repeats)])
        for runner, device, offset in ((execution.execute, judge.device, 0), (call, torch.device("cpu"), 5000))
    )
    for name, statistic in STATISTICS.items():
        distance = _distance(statistic(ours), statistic(theirs))
        allowed = limits().random.sigmas
        judge.check.that(distance <= allowed, f"{sample}: {name} differs by {distance:.1f} standard errors, allowed {allowed}")


def _numbers(result) -> torch.Tensor:
    tensor = plain(tensors(result)[0])
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return tensor.reshape(-1).to(torch.float64)


STATISTICS = {
    "the share of zeros": lambda numbers: (numbers == 0).double(),
    "the mean": lambda numbers: numbers.nan_to_num(0, 0, 0),
    "the mean square": lambda numbers: numbers.nan_to_num(0, 0, 0) ** 2,
}


def _distance(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Difference of two means in standard errors. Draws of one call may depend on each other, so this is a rough scale."""
    error = math.sqrt(float(ours.var() / ours.numel() + theirs.var() / theirs.numel()))
    difference = abs(float(ours.mean() - theirs.mean()))
    if error == 0 or not math.isfinite(error):
        return 0.0 if difference <= 1e-6 * (1 + abs(float(theirs.mean()))) else float("inf")
    return difference / error
