"""Checks of operators that draw random numbers: repeatability under a seed, variation between seeds, distribution.

The ``out=`` form has to write its output. It may draw other numbers than the plain call, of the same distribution.
"""

from __future__ import annotations

import functools
import math

import torch

from conformance.numerics.compare import plain, same_bits, widen
from conformance.numerics.transfer import copied
from conformance.numerics.trees import tensors

from . import execution
from .arrangements import poisoned
from .classes import is_factorisation
from .execution import HOST, OperatorSample, call
from .judging import with_equal_strides
from .sampling import limits

#: Several seeds, because pooling over random windows may choose the same maxima twice.
OTHER_SEEDS = (2, 3, 4)
#: Elements of one result from which two seeds cannot give the same numbers by chance.
_INFORMATIVE = 16
#: Elements of the smallest result whose statistics are compared.
_FEWEST = 3


def check(info, judge, sample: OperatorSample, expected) -> None:
    """Check metadata, equal numbers under one seed, different bits under another, and statistics."""
    label = str(sample)
    arguments = sample.on(judge.device)
    execution.reseed(1, judge.device)
    first = judge.watches.execute(info.op, arguments)
    _check_inputs(info, judge, sample, arguments, str(sample))
    judge.metadata(label, first, expected, with_equal_strides(sample.on(judge.device), sample))
    again = draw(execution.execute, info, sample, judge.device, seed=1)
    judge.check.that(repeats(first, again), f"{label}: the same seed gave different numbers")
    judge.samples += 1
    judge.drawn.add(sample.number)
    if _is_informative(expected):
        seeds = range(2, 2 + limits().random.seeds)
        draws = (draw(execution.execute, info, sample, judge.device, seed=seed) for seed in seeds)
        differ = any(not _same(first, drawn) for drawn in draws) or _host_repeats(info, sample)
        judge.check.that(differ, f"{label}: another seed gave the same numbers")
        if len(judge.drawn) <= limits().random.samples:
            check_statistics(info, judge, sample)
    elif any(tensor.numel() >= _FEWEST for tensor in tensors(expected)):
        check_statistics(info, judge, sample)
    if info.supports_out and isinstance(expected, torch.Tensor) and expected.layout is torch.strided:
        _check_out(info, judge, sample, expected)


def _check_out(info, judge, sample: OperatorSample, expected: torch.Tensor) -> None:
    """Check that the ``out=`` form writes and returns its output: the numbers of the plain call, or others like them.

    PyTorch does not promise that both forms draw the same numbers under one seed.
    """
    if not has_out(info, sample, expected):
        return
    label, run = f"{sample}, out= variant", functools.partial(drawn_into, execution.execute, expected)
    arguments = sample.on(judge.device)
    execution.reseed(1, judge.device)
    first = run(info.op, arguments)
    _check_inputs(info, judge, sample, arguments, label)
    again = draw(run, info, sample, judge.device, seed=1)
    judge.check.that(repeats(first[0], again[0]), f"{label}: the same seed gave different numbers")
    returned, out = first
    judge.check.that(returned.shape == out.shape and _same(returned, out), f"{label}: the result is not the output")
    judge.metadata(label, out, expected)
    if not repeats(draw(execution.execute, info, sample, judge.device, seed=1), out):
        check_statistics(info, judge, sample, lambda *given: run(*given)[1], "out= variant")


def has_out(info, sample: OperatorSample, like: torch.Tensor) -> bool:
    """Return whether the host takes an output for this call."""
    try:
        draw(functools.partial(drawn_into, call, like), info, sample, torch.device("cpu"), seed=1)
    except Exception:  # the host has no such form of this call
        return False
    return True


def drawn_into(runner, like: torch.Tensor, function, sample: OperatorSample) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the result of a call with an output, and the output, whose old contents no draw gives."""
    out = copied(poisoned(like.shape, like.dtype), sample.device)
    return runner(function, sample, out=out), out


def _check_inputs(info, judge, sample: OperatorSample, arguments: OperatorSample, label: str) -> None:
    """Check that the call has changed no input but those that it fills with random numbers on the host too."""
    host = sample.on(torch.device("cpu"))
    call(info.op, host)
    for number, (after, written, before) in enumerate(
        zip(arguments.tensors, host.tensors, sample.tensors, strict=True)
    ):
        if same_bits(plain(written), plain(before)):
            kept = same_bits(plain(after), plain(before))
            judge.check.that(kept, f"{label}: input {number} was changed by an out-of-place operation")


def _host_repeats(info, sample: OperatorSample) -> bool:
    """Return whether the host too repeats a result under another seed, as pooling over nearly the whole input does."""
    first, *rest = (draw(call, info, sample, torch.device("cpu"), seed=seed) for seed in (1, *OTHER_SEEDS))
    return any(_same(first, drawn) for drawn in rest)


def draw(runner, info, sample: OperatorSample, device: torch.device, seed: int):
    """Seed the generators and return the operator's result on ``device``."""
    arguments = sample.on(device)
    execution.reseed(seed, device)
    return runner(info.op, arguments)


def _same(left, right) -> bool:
    return all(same_bits(plain(a), plain(b)) for a, b in zip(tensors(left), tensors(right), strict=True))


def repeats(left, right) -> bool:
    """Return whether two results come from the same random numbers.

    Sums and products behind the draw may round otherwise in each call: PyTorch does not promise their order.
    """
    pairs = zip(tensors(left), tensors(right), strict=True)
    return all(_equal_but_for_rounding(plain(a), plain(b)) for a, b in pairs)


def _equal_but_for_rounding(left: torch.Tensor, right: torch.Tensor) -> bool:
    if same_bits(left, right):
        return True
    if (left.dtype, left.shape) != (right.dtype, right.shape) or not (left.is_floating_point() or left.is_complex()):
        return False
    finite = left.isfinite()
    if not torch.equal(finite, right.isfinite()) or not bool(finite.any()):
        return False
    wide, other = widen(left)[finite], widen(right)[finite]
    allowed = limits().random.rounding * torch.finfo(left.dtype).eps * wide.abs().max()
    return bool((wide - other).abs().max() <= allowed)


def _is_informative(expected) -> bool:
    """Return whether there are enough numbers that two seeds cannot agree by chance."""
    return any(tensor.numel() >= _INFORMATIVE for tensor in tensors(expected))


def check_statistics(info, judge, sample: OperatorSample, run=None, variant: str = "") -> None:
    """Compare statistics of the first output: a device that draws other numbers draws them from the same distribution.

    Both sides make many calls; the means may differ by a number of standard errors (limits.toml, ``random``). ``run``
    is another form of the call on the device, and ``variant`` its name.
    """
    repeats, allowed = range(limits().random.calls), limits().random.sigmas
    run = run or execution.execute
    # Disjoint seeds: two generators that are the same algorithm must not agree by drawing the same numbers.
    device_statistics = [_statistics(info, draw(run, info, sample, judge.device, seed=100 + i)) for i in repeats]
    host_statistics = [_statistics(info, draw(call, info, sample, HOST, seed=5000 + i)) for i in repeats]
    label = f"{sample}, {variant}" if variant else str(sample)
    for name, device_values, host_values in zip(
        STATISTICS, torch.stack(device_statistics).T, torch.stack(host_statistics).T, strict=True
    ):
        distance = _distance(device_values, host_values)
        close = distance <= allowed
        judge.check.that(close, f"{label}: {name} differs by {distance:.1f} standard errors, allowed {allowed}")


#: The mean of some distributions does not exist; that of the arc tangent always does.
STATISTICS = ("the share of zeros", "the mean", "the mean square", "the mean arc tangent", "the share of repetitions")


def _statistics(info, result) -> torch.Tensor:
    """Return the statistics of one call.

    They are averaged per call because numbers within a call may depend on each other: dropout may drop whole channels.
    Of a factorisation, only the singular values are determined; signs of vectors are open.
    """
    outputs = tensors(result)
    tensor = plain(min(outputs, key=torch.Tensor.dim) if is_factorisation(info) else outputs[0])
    repeated = _repeated(tensor)
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    numbers = tensor.to(torch.float64).nan_to_num(0, 0, 0)
    means = [(numbers == 0).double(), numbers, numbers * numbers, numbers.atan()]
    return torch.stack([*(values.mean() for values in means), repeated])


def _repeated(tensor: torch.Tensor) -> torch.Tensor:
    """Return the share of integers that are equal to another one of their row: choices may be without replacement."""
    if tensor.is_floating_point() or tensor.is_complex() or not tensor.dim() or not tensor.numel():
        return torch.zeros((), dtype=torch.float64)
    ordered = tensor.long().sort(-1).values
    return (ordered[..., 1:] == ordered[..., :-1]).double().sum() / tensor.numel()


def _distance(device_statistics: torch.Tensor, host_statistics: torch.Tensor) -> float:
    """Return the difference of two means in standard errors, or 0 for a difference of roundings."""
    error = math.sqrt(float((device_statistics.var() + host_statistics.var()) / device_statistics.numel()))
    difference = abs(float(device_statistics.mean() - host_statistics.mean()))
    if difference <= 1e-6 * (1 + abs(float(host_statistics.mean()))):
        return 0.0
    if error == 0 or not math.isfinite(error):  # without a spread between calls the means have to be equal
        return float("inf")
    return difference / error
