"""Inputs that an operator must refuse."""

from __future__ import annotations

import torch

from . import execution
from .execution import HOST, Sample, call


def check_refusals(info, device: torch.device, check) -> None:
    """Every error input raises; on the host with an exception of the type the database names.

    The database also lists inputs that PyTorch's CPU accepts after all; those are nobody's duty.
    """
    for number, error in enumerate(info.error_inputs("cpu", set_seed=False)):
        sample = Sample.of(number, error.sample_input)
        if _refusal(call, info, sample.on(HOST)) is None:
            continue
        raised = _refusal(execution.execute, info, sample.on(device))
        names = _names(error.error_type)
        check.that(raised is not None, f"error input {number} ({sample}) was accepted; expected {names}")
        if device.type == HOST.type:  # where the database's exception types hold; elsewhere any is a refusal
            right = isinstance(raised, error.error_type)
            check.that(right, f"error input {number} ({sample}): raised {type(raised).__name__}, expected {names}")
    check.metric("comparisons", check.count)


def _refusal(runner, info, sample: Sample) -> Exception | None:
    try:
        value = runner(info.op, sample)
    except Exception as raised:  # what is raised is the finding
        return raised
    # Python's own protocol for "these operands are not mine"; the interpreter turns it into a TypeError.
    return TypeError("NotImplemented") if value is NotImplemented else None


def _names(types) -> str:
    return types.__name__ if isinstance(types, type) else " or ".join(each.__name__ for each in types)
