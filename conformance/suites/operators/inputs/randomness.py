"""Checks of operators that draw random numbers: repeatability under a seed, variation between seeds, distribution.

The ``out=`` form has to write its output. It may draw other numbers than the plain call, of the same distribution.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

from conformance.numerics.compare import plain, same_bits, widen
from conformance.numerics.trees import tensors
from conformance.suites.operators.calls import execution
from conformance.suites.operators.calls.calls import HOST, Call
from conformance.suites.operators.calls.classes import is_factorisation
from conformance.suites.operators.calls.execution import call, perform
from conformance.suites.operators.judge.cells import Cell
from conformance.suites.operators.judge.judging import with_equal_strides
from conformance.suites.shared_bodies import of_draws

from . import forms
from .arrangements import poisoned

#: Several seeds, because pooling over random windows may choose the same maxima twice.
OTHER_SEEDS = (2, 3, 4)
#: Elements of one result from which two seeds cannot give the same numbers by chance.
_INFORMATIVE = 16
#: Elements of the smallest result whose statistics are compared.
_FEWEST = 3
#: Standard errors by which statistics of device and host may differ.
_SIGMAS = 6.0
#: Eps of the largest number by which two results of one seed may differ.
_ROUNDING = 16


def check(cell: Cell, sample: Call, expected: Any) -> None:
    """Check metadata, equal numbers under one seed, different bits under another, and statistics."""
    arguments = cell.on(sample)
    execution.reseed(1, cell.device)
    first = cell.watches.execute(cell.info.op, arguments)
    _check_inputs(cell, sample, arguments)
    cell.judge.metadata(sample, first, expected, with_equal_strides(cell.on(sample), sample), own=False)
    again = draw(cell, sample, seed=1)
    _claim_repeated(cell, sample, repeats(first, again))
    cell.tally.compared += 1
    cell.tally.drawn.add(sample.number)
    if _is_informative(expected):
        seeds = range(2, 2 + cell.work.random.seeds)
        draws = (draw(cell, sample, seed=seed) for seed in seeds)
        differ = any(not _same(first, drawn) for drawn in draws) or _host_repeats(cell.info, sample)
        cell.judge.claim(sample, differ, "another seed gave the same numbers")
        if len(cell.tally.drawn) <= cell.work.random.samples:
            check_statistics(cell, sample)
    elif any(tensor.numel() >= _FEWEST for tensor in tensors(expected)):
        check_statistics(cell, sample)
    if cell.info.supports_out and isinstance(expected, torch.Tensor) and expected.layout is torch.strided:
        _check_out(cell, into_output(cell.info, sample, expected), expected)


def _check_out(cell: Cell, form: Call, expected: torch.Tensor) -> None:
    """Check that the ``out=`` form writes and returns its output: the numbers of the plain call, or others like them.

    PyTorch does not promise that both forms draw the same numbers under one seed.
    """
    if not is_taken(cell.info, form):
        return
    arguments = cell.on(form)
    execution.reseed(1, cell.device)
    returned, out = perform(execution.execute, cell.info, arguments), arguments.extra["out"]
    _check_inputs(cell, form, arguments)
    _claim_repeated(cell, form, repeats(returned, draw(cell, form, seed=1)))
    cell.judge.claim(form, returned.shape == out.shape and _same(returned, out), "the result is not the output")
    cell.judge.metadata(form, out, expected, own=False)
    if not repeats(draw(cell, form.into("", None), seed=1), out):
        check_statistics(cell, form)


def _claim_repeated(cell: Cell, form: Call, same: bool) -> None:
    """Claim that one seed gave the same numbers twice. A device that draws late is named as such."""
    said = "the same seed gave different numbers"
    if not same:
        execution.require_seed(cell.device)
    seed = functools.partial(execution.reseed, device=cell.device)
    cell.judge.claim(form, same, said if same else of_draws(seed, cell.device, said))


def into_output(info: Any, sample: Call, like: torch.Tensor) -> Call:
    """Return the call with an output, whose old contents no draw gives."""
    return sample.into(forms.OUT, info.op, out=poisoned(like.shape, like.dtype))


def is_taken(info: Any, form: Call) -> bool:
    """Return whether the host takes an output for this call."""
    try:
        draw_on_host(info, form, seed=1)
    except Exception:  # the host has no such form of this call
        return False
    return True


def _check_inputs(cell: Cell, sample: Call, arguments: Call) -> None:
    """Check that the call has changed no input but those that it fills with random numbers on the host too."""
    host = sample.into("", None).on(HOST)
    call(cell.info.op, host)
    for number, (after, written, before) in enumerate(
        zip(arguments.tensors, host.tensors, sample.tensors, strict=True)
    ):
        if same_bits(plain(written), plain(before)):
            kept = same_bits(plain(after), plain(before))
            cell.judge.claim(sample, kept, f"input {number} was changed by an out-of-place operation")


def _host_repeats(info: Any, sample: Call) -> bool:
    """Return whether the host too repeats a result under another seed, as pooling over nearly the whole input does."""
    first, *rest = (draw_on_host(info, sample, seed=seed) for seed in (1, *OTHER_SEEDS))
    return any(_same(first, drawn) for drawn in rest)


def draw(cell: Cell, form: Call, seed: int) -> Any:
    """Seed the generators and return what a call draws on the device: its output, if it has one."""
    arguments = cell.on(form)
    execution.reseed(seed, cell.device)
    drawn = perform(execution.execute, cell.info, arguments)
    return arguments.extra.get("out", drawn)


def draw_on_host(info: Any, form: Call, seed: int) -> Any:
    """Seed the generators and return what a call draws on the host: its output, if it has one."""
    arguments = form.on(HOST)
    execution.reseed(seed, HOST)
    return perform(call, info, arguments)


def _same(left: Any, right: Any) -> bool:
    """Return whether two results have the same bits."""
    return all(same_bits(plain(a), plain(b)) for a, b in zip(tensors(left), tensors(right), strict=True))


def repeats(left: Any, right: Any, *, of_one_backward: bool = False) -> bool:
    """Return whether two results come from the same random numbers.

    Sums and products behind the draw may round otherwise in each call: PyTorch does not promise their order. With
    ``of_one_backward``, a small gradient may be what is left of terms as large as the other results.
    """
    pairs = [(plain(a), plain(b)) for a, b in zip(tensors(left), tensors(right), strict=True)]
    largest = max((_largest(first) for first, _ in pairs), default=0.0) if of_one_backward else 0.0
    return all(_equal_but_for_rounding(first, second, largest) for first, second in pairs)


def _largest(tensor: torch.Tensor) -> float:
    """Return the largest finite absolute value of real or complex numbers; 0 for integers."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return 0.0
    finite = tensor[tensor.isfinite()]
    return float(widen(finite).abs().max()) if finite.numel() else 0.0


def _equal_but_for_rounding(left: torch.Tensor, right: torch.Tensor, largest: float) -> bool:
    """Return whether two tensors differ by roundings at most, relative to their largest element or ``largest``."""
    if same_bits(left, right):
        return True
    if (left.dtype, left.shape) != (right.dtype, right.shape) or not (left.is_floating_point() or left.is_complex()):
        return False
    finite = left.isfinite()
    if not torch.equal(finite, right.isfinite()) or not bool(finite.any()):
        return False
    wide, other = widen(left)[finite], widen(right)[finite]
    allowed = _ROUNDING * torch.finfo(left.dtype).eps * max(largest, float(wide.abs().max()))
    return bool((wide - other).abs().max() <= allowed)


def _is_informative(expected: Any) -> bool:
    """Return whether there are enough numbers that two seeds cannot agree by chance."""
    return any(tensor.numel() >= _INFORMATIVE for tensor in tensors(expected))


def check_statistics(cell: Cell, form: Call) -> None:
    """Compare statistics of the first output: a device that draws other numbers draws them from the same distribution.

    Both sides make many calls; the means may differ by a number of standard errors. The
    host's numbers are those of the plain form.
    """
    repeats, allowed, plainly = range(cell.work.random.calls), _SIGMAS, form.into("", None)
    # Disjoint seeds: two generators that are the same algorithm must not agree by drawing the same numbers.
    device_statistics = [_statistics(cell.info, draw(cell, form, seed=100 + i)) for i in repeats]
    host_statistics = [_statistics(cell.info, draw_on_host(cell.info, plainly, seed=5000 + i)) for i in repeats]
    for name, device_values, host_values in zip(
        STATISTICS, torch.stack(device_statistics).T, torch.stack(host_statistics).T, strict=True
    ):
        distance = _distance(device_values, host_values)
        said = f"{name} differs by {distance:.1f} standard errors, allowed {allowed}"
        cell.judge.claim(form, distance <= allowed, said)


#: The mean of some distributions does not exist; that of the arc tangent always does.
STATISTICS = ("the share of zeros", "the mean", "the mean square", "the mean arc tangent", "the share of repetitions")


def _statistics(info: Any, result: Any) -> torch.Tensor:
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
