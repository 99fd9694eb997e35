"""Indices beyond the end: an operator that reads or writes where they point refuses them, at once or later.

The database has such a call for few operators, and none with ``out=`` or in place, whose kernels may be others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from . import execution, forms, sampling, special_inputs
from .error_inputs import computes
from .execution import HOST, OperatorSample, call
from .sampling import limits
from .variants import attempt, settled


def check(info, judge, samples: list[OperatorSample], dtype: torch.dtype) -> None:
    """Check that the device refuses an index beyond the end, in one dtype.

    A device may refuse by an assertion in its kernel, which ends its context. So this is the last check of a cell.
    """
    if info.name not in limits().indices.bounded or not sampling.is_first_dtype(info, dtype):
        return
    device, check = judge.device, judge.check
    for sample in special_inputs.unlike(info, judge, samples, most=len(samples)):
        for name, beyond in _beyond(info, sample):
            for form, run in _forms(info, sample):
                if attempt(run, call, beyond.on(HOST)).error is None:
                    continue
                label = f"{beyond}, {name}{form}"
                found = settled(attempt(run, execution.execute, beyond.on(device)))
                check.that(found.error is not None, f"{label}: accepted, and it names memory outside of the tensor")
                if device.type != HOST.type and not computes(device):
                    check.context_ended_by = label
                    check.metric("context_ended_by", label)
                    return


def _beyond(info, sample: OperatorSample) -> Iterator[tuple[str, OperatorSample]]:
    """Yield the sample with the last index one beyond the end, or before the beginning."""
    for number, index in enumerate(sample.tensors):
        if index.dtype is not torch.int64 or index.layout is not torch.strided:
            continue
        others = [tensor for tensor in sample.tensors if tensor is not index]
        is_flat = info.name in limits().indices.flat
        end = max((t.numel() if is_flat else max(t.shape, default=1) for t in others), default=1)
        for name, value in (("beyond the end", end), ("before the beginning", -end - 1)):
            changed = index.clone(memory_format=torch.contiguous_format).reshape(-1)
            changed[-1] = value
            yield f"input {number} {name}", sample.with_tensor(index, changed.reshape(index.shape))


def _forms(info, sample: OperatorSample) -> Iterator[tuple[str, Callable]]:
    """Yield the plain call, and the ``out=`` and the in-place form if there is one."""
    yield "", lambda run, beyond: run(info.op, beyond)
    usual = attempt(call, info.op, sample.on(HOST)).value
    for name, form in forms.others(info, usual):
        yield f", {name}", form
