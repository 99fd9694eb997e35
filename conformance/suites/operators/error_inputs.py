"""Inputs that an operator must refuse."""

from __future__ import annotations

import torch

from . import execution
from .execution import Sample

#: Device types on which the database's own exception types are known to hold.
EXACT_TYPES = frozenset({"cpu", "cuda"})


def check_refusals(info, device: torch.device, check) -> None:
    """Every error input raises; on PyTorch's own device types with the type that PyTorch documents in its database."""
    for number, error in enumerate(info.error_inputs("cpu", set_seed=False)):
        sample = Sample.of(number, error.sample_input)
        raised = _raised_by(info, sample.on(device))
        check.that(raised is not None, f"error input {number} ({sample}) was accepted; expected {_names(error.error_type)}")
        if device.type in EXACT_TYPES:
            right = isinstance(raised, error.error_type)
            check.that(right, f"error input {number}: {type(raised).__name__}, expected {_names(error.error_type)}")
    check.metric("comparisons", check.count)


def _raised_by(info, sample: Sample) -> BaseException | None:
    try:
        execution.execute(info.op, sample)
    except Exception as raised:  # what is raised is the finding
        return raised
    return None


def _names(types) -> str:
    return types.__name__ if isinstance(types, type) else " or ".join(each.__name__ for each in types)
