"""No indices at all, beside a tensor that has elements: nothing is read or written, and the rest stays.

A kernel that returns at once where there is nothing to do may leave its output as the allocator gave it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from conformance.accelerators.capabilities import Mode
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.calls.execution import host_call
from conformance.suites.operators.judge.cells import Cell

from . import large
from .comparing import check_with_forms
from .families import source
from .kinds import of_other_sizes, unlike

#: Numbers from 9580 on are no numbers of other samples.
_NUMBER = 9580


@source(Mode.INFERENCE, check_with_forms, once=True, fixed=True)
def no_rows(cell: Cell) -> Iterator[Call]:
    """Yield samples whose indices have no rows along one dimension."""
    number = _NUMBER
    for sample in unlike(cell, cell.fixed) if of_other_sizes(cell) is not None else ():
        if isinstance(sample.input, torch.Tensor) and large.fits(sample):
            for found in _without_rows(cell, sample):
                yield replace(found, number=number, source="no indices")
                number += 1


def _without_rows(cell: Cell, sample: Call) -> Iterator[Call]:
    for growth in large.growths(sample):
        grows = [tensor for tensor, dim in zip(sample.tensors, growth, strict=True) if dim is not None]
        if growth[0] is not None or not any(tensor.dtype is torch.int64 for tensor in grows):
            continue
        found = large.extended(cell.info, sample, growth, 0)
        made = host_call(cell.info.op, found)
        if made.error is None and not made.draws:
            yield found
