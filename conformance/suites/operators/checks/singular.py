"""Batches with one matrix that has no factorisation or no inverse: an operator refuses it, wherever it is.

Each matrix of a batch has a status of its own, and a check of the first one alone misses the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from conformance.accelerators.capabilities import Mode
from conformance.numerics.compare import plain
from conformance.suites.operators.calls import execution
from conformance.suites.operators.calls.calls import HOST, Call
from conformance.suites.operators.calls.classes import is_factorisation
from conformance.suites.operators.calls.execution import attempt, call, settled
from conformance.suites.operators.inputs.families import Stage, check
from conformance.suites.operators.judge.cells import Cell


@check(Mode.INFERENCE, stage=Stage.REFUSALS, once=True, values=False)
def singular(cell: Cell) -> None:
    """Check that the device refuses a batch whose first or last matrix is zero, if PyTorch's CPU calls it singular."""
    if not is_factorisation(cell.info):
        return
    for sample in cell.samples:
        if any(_is_batch(tensor) for tensor in sample.tensors[:1]):
            found = [_check(cell, spoilt) for spoilt in _with_zeros(sample)]
            if any(found):
                return


def _check(cell: Cell, sample: Call) -> bool:
    """Check one call; return whether the host refuses it, so that it could be checked."""
    made = attempt(call, cell.info, sample.on(HOST))
    if made.error is None:
        return _check_status(cell, sample, made.value)
    if not isinstance(made.error, torch.linalg.LinAlgError):  # type: ignore[attr-defined]  # torch has no types here
        return False
    found = settled(attempt(execution.execute, cell.info, cell.on(sample)))
    cell.judge.claim(sample, found.error is not None, "accepted, and it is singular or not positive definite")
    return True


def _check_status(cell: Cell, sample: Call, due: Any) -> bool:
    """Check which matrices an operator with a status names; return whether the host names one."""
    info = getattr(due, "info", None)
    if not cell.info.name.endswith("_ex") or info is None or not bool(info.any()):
        return False
    found = plain(execution.execute(cell.info.op, cell.on(sample)).info)
    said = (
        f"status {found.tolist()}, on PyTorch's CPU {info.tolist()}: each matrix without an inverse or factors has one"
    )
    cell.judge.claim(sample, torch.equal(found != 0, info != 0), said)
    return True


def _is_batch(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a batch of at least two square matrices."""
    return tensor.dim() > 2 and tensor.shape[0] > 1 and tensor.numel() > 0 and tensor.shape[-1] == tensor.shape[-2]


def _with_zeros(sample: Call) -> Iterator[Call]:
    """Yield the sample with zeros in the place of the first and of the last matrix of its first tensor."""
    first = sample.tensors[0]
    for name, place in (("first", 0), ("last", -1)):
        changed = first.detach().clone()
        changed[place] = 0
        other = sample.with_tensor(first, changed.requires_grad_(first.requires_grad))
        yield other.named(change=f"zeros in the {name} matrix")
