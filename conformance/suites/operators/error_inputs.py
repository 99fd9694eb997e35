"""Checks with inputs that an operator must refuse."""

from __future__ import annotations

import torch

from conformance.numerics.compare import plain
from conformance.numerics.trees import mapped, tensors

from . import execution, sampling
from .classes import is_uninitialised
from .execution import HOST, OperatorSample, call
from .promises import promises_refusal
from .sampling import limits


def check_refusals(info, device: torch.device, check) -> None:
    """Check that every error input raises, unless it has a meaning that only PyTorch's CPU kernel does not support.

    On the host the exception has to be of the type that the database names. The database also lists inputs that
    PyTorch's CPU accepts; these are skipped.
    """
    for number, error in enumerate(info.error_inputs("cpu", set_seed=False)):
        sample = OperatorSample.of(number, error.sample_input)
        if _refusal(call, info, sample.on(HOST)) is None:
            continue
        raised = _refusal(execution.execute, info, sample.on(device))
        names = _names(error.error_type)
        accepted = raised is None and is_meaningless(info, sample)
        check.that(not accepted, f"error input {number} ({sample}) was accepted; expected {names}")
        if device.type == HOST.type:  # the database's types hold for the CPU; elsewhere any exception is a refusal
            right = isinstance(raised, error.error_type)
            check.that(right, f"error input {number} ({sample}): raised {type(raised).__name__}, expected {names}")


def check_right_call(info, dtype: torch.dtype, device: torch.device, check) -> None:
    """Check that the operator accepts a right call after the wrong ones, and computes something.

    A device that refuses everything, or that computes nothing, refuses no wrong call by itself: PyTorch does.
    Whether the values are right is the matter of other cases.
    """
    for sample in sampling.pick(info, dtype, requires_grad=False, extent=limits().training):
        try:
            expected = call(info.op, sample.on(HOST))
        except Exception:  # the host refuses it too, so it says nothing
            continue
        actual = execution.execute(info.op, sample.on(device))
        check.count += 1
        if is_uninitialised(info) or any(tensor.any() for tensor in map(plain, tensors(actual))):
            break
        zeros = all(not tensor.any() for tensor in map(plain, tensors(expected)))
        check.that(zeros, f"after the error inputs, {sample} gives zeros alone")
    check.metric("comparisons", check.count)


def is_meaningless(info, sample: OperatorSample) -> bool:
    """Return whether no device can compute the call.

    The meta function refuses it; or the host refuses the same values in contiguous memory and in float64 too, so that
    the values are to blame, as an index beyond the end is.
    """
    if promises_refusal(info.op, sample):
        return True
    contiguous = sample.with_arguments(mapped(sample.arguments, _contiguous))
    return all(_refusal(call, info, other.on(HOST)) is not None for other in (contiguous, sample.wide(_same)))


def _contiguous(leaf):
    return leaf.contiguous() if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided else leaf


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _refusal(runner, info, sample: OperatorSample) -> Exception | None:
    try:
        value = runner(info.op, sample)
    except Exception as raised:  # any exception is a refusal; its type is checked by the caller
        return raised
    # A binary method returns NotImplemented for foreign operands; the interpreter turns that into a TypeError.
    return TypeError("NotImplemented") if value is NotImplemented else None


def _names(types) -> str:
    return types.__name__ if isinstance(types, type) else " or ".join(kind.__name__ for kind in types)
