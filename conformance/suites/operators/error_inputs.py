"""Checks with inputs that an operator must refuse."""

from __future__ import annotations

import torch

from . import execution
from .execution import HOST, OperatorSample, call


def check_refusals(info, device: torch.device, check) -> None:
    """Check that every error input raises.

    On the host the exception has to be of the type that the database names. The database also lists inputs that
    PyTorch's CPU accepts; these are skipped.
    """
    for number, error in enumerate(info.error_inputs("cpu", set_seed=False)):
        sample = OperatorSample.of(number, error.sample_input)
        if _refusal(call, info, sample.on(HOST)) is None:
            continue
        raised = _refusal(execution.execute, info, sample.on(device))
        names = _names(error.error_type)
        check.that(raised is not None, f"error input {number} ({sample}) was accepted; expected {names}")
        if device.type == HOST.type:  # the database's types hold for the CPU; elsewhere any exception is a refusal
            right = isinstance(raised, error.error_type)
            check.that(right, f"error input {number} ({sample}): raised {type(raised).__name__}, expected {names}")
    check.metric("comparisons", check.count)


def _refusal(runner, info, sample: OperatorSample) -> Exception | None:
    try:
        value = runner(info.op, sample)
    except Exception as raised:  # any exception is a refusal; its type is checked by the caller
        return raised
    # A binary method returns NotImplemented for foreign operands; the interpreter turns that into a TypeError.
    return TypeError("NotImplemented") if value is NotImplemented else None


def _names(types) -> str:
    return types.__name__ if isinstance(types, type) else " or ".join(kind.__name__ for kind in types)
