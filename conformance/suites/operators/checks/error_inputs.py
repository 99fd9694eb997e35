"""Checks with inputs that an operator must refuse."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch

from conformance.judging.checker import Checker
from conformance.numerics.compare import plain
from conformance.numerics.trees import mapped, tensors
from conformance.suites.operators.calls import execution, sampling
from conformance.suites.operators.calls.calls import HOST, Call
from conformance.suites.operators.calls.classes import is_uninitialised
from conformance.suites.operators.calls.execution import call, host_call
from conformance.suites.operators.judge.cells import Cell
from conformance.suites.operators.judge.promises import promises_refusal

#: What tells error inputs apart: the message that they ask for, and the shapes of their tensors.
Key = tuple[str, tuple[tuple[int, ...], ...]]


@dataclass(frozen=True)
class Invalid:
    """One call that the operator has to refuse. ``depends_on_values``: PyTorch expects the refusal of its CPU only."""

    call: Call
    types: Any
    depends_on_values: bool


def check_refusals(info: Any, dtype: torch.dtype, device: torch.device, check: Checker) -> None:
    """Check that every error input raises, unless it has a meaning that only PyTorch's CPU kernel does not support.

    On the host the exception has to be of the type that the database names. The database also lists inputs that
    PyTorch's CPU accepts; these are skipped. Inputs that are wrong by their values come last: a device may refuse them
    after the call has returned, by an assertion in the kernel, and its context ends with that. A right call in
    ``dtype`` comes before them.
    """
    cell, calls = Cell.of(info, dtype, device, check, []), _invalid_calls(info)
    with cell.reporting_calls():
        for invalid in calls:
            if not invalid.depends_on_values:
                _check_refusal(cell, invalid)
        check_right_call(cell)
        by_values = [invalid for invalid in calls if invalid.depends_on_values]
        for position, invalid in enumerate(by_values):
            _check_refusal(cell, invalid)
            if device.type != HOST.type and not computes(device):
                check.context_ended_by = str(invalid.call)
                check.metric("context_ended_by", str(invalid.call))
                check.metric("not_run", len(by_values) - position - 1)
                break
    check.metric("comparisons", check.count)


def _check_refusal(cell: Cell, invalid: Invalid) -> None:
    """Judge whether the device refuses an invalid call; a CPU has to raise the type that the database names."""
    names, given = _names(invalid.types), invalid.call
    raised = _refusal(execution.execute, cell.info, cell.on(given))
    accepted = raised is None and _must_be_refused(cell.info, invalid)
    cell.judge.claim(given, not accepted, f"it was accepted; expected {names}")
    if cell.device.type == HOST.type:  # the database's types hold for the CPU; elsewhere any exception is a refusal
        right = isinstance(raised, invalid.types)
        cell.judge.claim(given, right, f"raised {type(raised).__name__}, expected {names}")


def _invalid_calls(info: Any) -> list[Invalid]:
    """Return the error inputs that PyTorch's CPU refuses."""
    everywhere = _listed_for_every_device(info)
    found = []
    for number, error in enumerate(info.error_inputs("cpu", set_seed=False)):
        given = Call.of(number, error.sample_input).named(source="error input")
        listed = everywhere is None or everywhere[_key(error)] > 0
        if everywhere is not None:
            everywhere[_key(error)] -= 1
        if _refusal(call, info, given.on(HOST)) is not None:
            found.append(Invalid(given, error.error_type, not listed))
    return found


def _listed_for_every_device(info: Any) -> Counter[Key] | None:
    """Return how often the database lists each error input for a device that is not a CPU; None if it cannot say."""
    try:
        return Counter(_key(error) for error in info.error_inputs("meta", set_seed=False))
    except Exception:  # some generators compute, which meta tensors cannot
        return None


def _key(error: Any) -> Key:
    """Return what pairs an error input on the device with the host's: the message, and the shapes of the tensors."""
    shapes = tuple(tuple(tensor.shape) for tensor in Call.of(0, error.sample_input).tensors)
    return error.error_regex, shapes


def _must_be_refused(info: Any, invalid: Invalid) -> bool:
    """Return whether acceptance is a failure.

    PyTorch does not ask other devices to look at values. But with an index beyond the end, a device that accepts the
    call reads or writes memory outside of the tensor.
    """
    has_index = any(tensor.dtype is torch.int64 for tensor in invalid.call.tensors)
    return is_meaningless(info, invalid.call) and (has_index or not invalid.depends_on_values)


def computes(device: torch.device) -> bool:
    """Return whether the device still adds two numbers."""
    try:
        return (torch.ones(2, device=device) + 1).sum().item() == 4
    except Exception:  # every device has its own exception for a context that has ended
        return False


def check_right_call(cell: Cell) -> None:
    """Check that the operator accepts a right call after the wrong ones, and computes something.

    A device that refuses everything, or that computes nothing, refuses no wrong call by itself: PyTorch does.
    Whether the values are right is the matter of other cases.
    """
    info = cell.info
    for picked in sampling.pick(info, cell.dtype, requires_grad=False, extent=cell.work.training):
        sample = picked.named(change="after the error inputs")
        usual = host_call(info.op, sample)
        if usual.error is not None:
            continue  # the host refuses it too, so it says nothing
        actual = execution.execute(info.op, cell.on(sample))
        if is_uninitialised(info) or any(tensor.any() for tensor in map(plain, tensors(actual))):
            cell.judge.counts(sample)
            break
        zeros = all(not tensor.any() for tensor in map(plain, tensors(usual.value)))
        cell.judge.claim(sample, zeros, "it gives zeros alone")


def is_meaningless(info: Any, sample: Call) -> bool:
    """Return whether no device can compute the call.

    The meta function refuses it; or the host refuses the same values in contiguous memory and in float64 too, so that
    the values are to blame, as an index beyond the end is.
    """
    if promises_refusal(info, sample):
        return True
    contiguous = sample.with_arguments(mapped(sample.arguments, _contiguous))
    return all(_refusal(call, info, other.on(HOST)) is not None for other in (contiguous, sample.wide()))


def _contiguous(leaf: Any) -> Any:
    """Return a dense tensor as a contiguous one; another value as it is."""
    return leaf.contiguous() if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided else leaf


def _refusal(runner: Any, info: Any, sample: Call) -> Exception | None:
    """Return the exception that a call raises, also when its result is read; None if it is accepted."""
    try:
        value = runner(info.op, sample)
    except Exception as raised:  # any exception is a refusal; its type is checked by the caller
        return raised
    if (late := execution.settled(execution.Attempt(value)).error) is not None:
        return late
    # A binary method returns NotImplemented for foreign operands; the interpreter turns that into a TypeError.
    return TypeError("NotImplemented") if value is NotImplemented else None


def _names(types: Any) -> str:
    """Return the names of one or several exception types for a message."""
    return types.__name__ if isinstance(types, type) else " or ".join(kind.__name__ for kind in types)
