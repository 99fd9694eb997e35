"""Indices beyond the end: an operator that reads or writes where they point refuses them, at once or later.

The database has such a call for few operators, and none with ``out=`` or in place, whose kernels may be others. It has
none whose index is a right one if a kernel keeps 32 bits of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch

from conformance.accelerators.capabilities import Mode
from conformance.suites.operators.calls import execution
from conformance.suites.operators.calls.calls import HOST, Call
from conformance.suites.operators.calls.execution import attempt, call, settled
from conformance.suites.operators.calls.facts import facts
from conformance.suites.operators.inputs import forms
from conformance.suites.operators.inputs.families import Stage, check
from conformance.suites.operators.inputs.kinds import unlike
from conformance.suites.operators.judge.cells import Cell

from .error_inputs import computes

#: The first number that 32 bits cut to 0.
_CUT: Final = 1 << 32


@check(Mode.INFERENCE, stage=Stage.LAST, once=True, values=False)
def bounds(cell: Cell) -> None:
    """Check that the device refuses an index beyond the end, in one dtype.

    A device may refuse by an assertion in its kernel, which ends its context. So this is the last check of a cell.
    """
    if not facts(cell.info.name).bounded_indices:
        return
    for sample in unlike(cell, cell.samples, most=len(cell.samples)):
        for beyond in _beyond(cell.info, sample):
            for form in (beyond, *_others(cell.info, sample, beyond)):
                if attempt(call, cell.info, form.on(HOST)).error is None:
                    continue
                found = settled(attempt(execution.execute, cell.info, cell.on(form)))
                cell.judge.claim(form, found.error is not None, "accepted, and it names memory outside of the tensor")
                if cell.device.type != HOST.type and not computes(cell.device):
                    cell.check.context_ended_by = str(form)
                    cell.check.metric("context_ended_by", str(form))
                    return


def _beyond(info: Any, sample: Call) -> Iterator[Call]:
    """Yield the sample with the last index one beyond the end, before the beginning, or beyond 32 bits."""
    for number, index in enumerate(sample.tensors):
        # Where bags begin is not checked by PyTorch's embedding_bag.
        if index.dtype is not torch.int64 or index.layout is not torch.strided or index is sample.kwargs.get("offsets"):
            continue
        last = int(index.reshape(-1)[-1])
        end = _end(info, sample, index)
        wrong = {"beyond the end": end, "before the beginning": -end - 1, "beyond 32 bits": _CUT + last}
        for name, value in wrong.items():
            yield _pointing(sample, index, value).named(change=f"input {number} {name}")


def _end(info: Any, sample: Call, index: torch.Tensor) -> int:
    """Return the first place behind what an index may name: the smallest size in the call that the host refuses."""
    others = [tensor for tensor in sample.tensors if tensor is not index]
    if facts(info.name).flat_indices:
        return max((tensor.numel() for tensor in others), default=1)
    sizes = sorted({size for tensor in others for size in tensor.shape}) or [1]
    refused = (size for size in sizes if attempt(call, info, _pointing(sample, index, size).on(HOST)).error is not None)
    return next(refused, sizes[-1])


def _pointing(sample: Call, index: torch.Tensor, value: int) -> Call:
    """Return the sample with another last index."""
    changed = index.clone(memory_format=torch.contiguous_format).reshape(-1)
    changed[-1] = value
    return sample.with_tensor(index, changed.reshape(index.shape))


def _others(info: Any, sample: Call, beyond: Call) -> Iterator[Call]:
    """Yield the ``out=`` and the in-place form of a wrong call of a sample, if there is one."""
    yield from forms.others(info, beyond, attempt(call, info, sample.on(HOST)).value)
