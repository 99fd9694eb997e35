"""Dimensions of size 1 at any place, each one row of two: their strides say nothing of how the others lie in memory.

A kernel that asks whether the last stride is 1, or takes a tensor with such a dimension for a contiguous one, reads or
writes other memory for these.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from conformance.accelerators.capabilities import Mode
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.calls.execution import host_call
from conformance.suites.operators.judge.cells import Cell

from . import large, variants
from .arrangements import ONE_OF_TWO, one_of_two
from .families import Stage, source
from .kinds import of_other_sizes

#: Numbers from 9850 on are no numbers of other samples.
_NUMBER = 9850


def _compare(cell: Cell, sample: Call) -> None:
    variants.rearranged(cell, sample, (ONE_OF_TWO,))
    variants.in_place_of(cell, sample, (ONE_OF_TWO,))
    if cell.info.supports_out:
        variants.into_arranged(cell, sample, "outputs of one row of two", one_of_two)


@source(Mode.INFERENCE, _compare, stage=Stage.FORMS, once=True, fixed=True)
def widths_of_one(cell: Cell) -> Iterator[Call]:
    """Yield a sample with size 1 in each dimension of its first tensor in turn, and in all but one."""
    sample = of_other_sizes(cell)
    if sample is None:
        return
    number = _NUMBER
    for shrunk in _shrunk(cell, sample):
        yield replace(shrunk, number=number, source=f"size 1 in dimension {shrunk.source}")
        number += 1


def _shrunk(cell: Cell, sample: Call) -> Iterator[Call]:
    """Yield the sample with one row along each dimension alone, and along all but the first and all but the last."""
    dims = sample.input.dim()
    for dim in range(dims):
        if (found := _with_one_row(cell, sample, dim)) is not None:
            yield replace(found, source=str(dim))
    for kept in {0, dims - 1} if dims > 1 else ():
        if (found := with_all_but_one(cell, sample, kept)) is not None:
            yield replace(found, source=f"all but {kept}")


def with_all_but_one(cell: Cell, sample: Call, kept: int) -> Call | None:
    """Return the sample with one row along each dimension of its first tensor but one; None if the host refuses it."""
    found: Call | None = sample
    for dim in range(sample.input.dim()):
        if dim != kept and found is not None:
            found = _with_one_row(cell, found, dim)
    return found


def _with_one_row(cell: Cell, sample: Call, dim: int) -> Call | None:
    """Return the sample with one row along a dimension of its first tensor, and of others that the host needs so."""
    if not sample.input.numel():
        return None
    for growth in large.growths(sample):
        if growth[0] == dim:
            found = large.extended(cell.info, sample, growth, 1)
            made = host_call(cell.info.op, found)
            if made.error is None and not made.draws:
                return found
    return None
