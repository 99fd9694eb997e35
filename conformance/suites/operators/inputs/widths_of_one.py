"""Dimensions of size 1 at any place, each one row of two: their strides say nothing of how the others lie in memory.

A kernel that asks whether the last stride is 1, or takes a tensor with such a dimension for a contiguous one, reads or
writes other memory for these.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import torch

from conformance.accelerators.capabilities import Mode
from conformance.numerics.trees import mapped
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.calls.execution import host_call
from conformance.suites.operators.judge.cells import Cell

from . import large, variants
from .arrangements import ONE_OF_TWO, one_of_two
from .families import Stage, source
from .kinds import of_other_sizes

#: Numbers from 9850 on are no numbers of other samples.
_NUMBER = 9850
#: Dimensions of a matrix.
_MATRIX = 2
#: Numbers at the two ends of the last dimension and of the one before, by the full name of an operator that pads, and
#: by the shape of a column or a row. The database pads no matrix along both dimensions.
_PADS: Final[dict[str, dict[tuple[int, ...], tuple[int, ...]]]] = {
    "nn.functional.pad.constant": {(4, 1): (2, 1, 1, 1), (1, 4): (1, 1, 2, 1), (2, 4, 1): (1, 2, 1, 1)},
    "nn.functional.pad.replicate": {(2, 4, 1): (2, 1, 1, 1), (2, 1, 4): (1, 1, 2, 1)},
    "nn.functional.pad.circular": {(2, 4, 1): (1, 1, 2, 1), (2, 1, 4): (1, 2, 1, 1)},
    "nn.functional.pad.reflect": {(2, 4, 1): (0, 0, 2, 1), (2, 1, 4): (1, 2, 0, 0)},
}


def _compare(cell: Cell, sample: Call) -> None:
    """Compare a call, its in-place form and its outputs for dimensions of size 1 that are one row of two."""
    variants.rearranged(cell, sample, (ONE_OF_TWO,))
    variants.in_place_of(cell, sample, (ONE_OF_TWO,))
    if cell.info.supports_out:
        variants.into_arranged(cell, sample, "outputs of one row of two", one_of_two)


@source(Mode.INFERENCE, _compare, stage=Stage.FORMS, once=True, fixed=True)
def widths_of_one(cell: Cell) -> Iterator[Call]:
    """Yield a sample with size 1 in each dimension of its first tensor in turn, in all but one, and in all tensors.

    A matrix has its turn too where the sample has more dimensions, as kernels often take other ways for it.
    """
    sample, number = of_other_sizes(cell), _NUMBER
    for shape, pads in _PADS.get(cell.info.full_name, {}).items():
        numbers = torch.arange(1, 1 + math.prod(shape)).view(shape).to(cell.dtype)
        mode = cell.info.full_name.rpartition(".")[2]
        yield Call(number, numbers, (pads, mode), source=f"pads {pads} around one row or column")
        number += 1
    if sample is None:
        return
    for given in [sample, *matrices(cell, sample)]:
        for shrunk in _shrunk(cell, given):
            yield replace(shrunk, number=number, source=f"size 1 in dimension {shrunk.source}")
            number += 1


def matrices(cell: Cell, sample: Call) -> list[Call]:
    """Return another sample whose first tensor is a matrix, where the sample has more dimensions."""
    if sample.input.dim() <= _MATRIX:
        return []
    found = (each for each in cell.fixed if isinstance(each.input, torch.Tensor) and each.input.dim() == _MATRIX)
    return [each for each in found if large.may_shrink(each) and each.input.numel()][:1]


def _shrunk(cell: Cell, sample: Call) -> Iterator[Call]:
    """Yield the sample with one row along each dimension alone, and along all but the first and all but the last."""
    dims = sample.input.dim()
    for dim in range(dims):
        if (found := with_one_row(cell, sample, dim)) is not None:
            yield replace(found, source=str(dim))
    # Of a matrix, all dimensions but one are the other one.
    for kept in {0, dims - 1} if dims > _MATRIX else ():
        if (found := with_all_but_one(cell, sample, kept)) is not None:
            yield replace(found, source=f"all but {kept}")
    ones = sample.with_arguments(mapped(sample.arguments, _first))
    if host_call(cell.info.op, ones).comparable:
        yield replace(ones, source="all of all tensors")


def _first(leaf: Any) -> Any:
    """Return the first element of a tensor, with as many dimensions."""
    if not isinstance(leaf, torch.Tensor) or not leaf.numel():
        return leaf
    return leaf.detach()[(slice(0, 1),) * leaf.dim()].clone()


def with_all_but_one(cell: Cell, sample: Call, kept: int) -> Call | None:
    """Return the sample with one row along each dimension of its first tensor but one; None if the host refuses it."""
    found: Call | None = sample
    for dim in range(sample.input.dim()):
        if dim != kept and found is not None:
            found = with_one_row(cell, found, dim)
    return found


def with_one_row(cell: Cell, sample: Call, dim: int) -> Call | None:
    """Return the sample with one row along a dimension of its first tensor, and of others that the host needs so."""
    if not sample.tensors[0].numel():
        return None
    for growth in large.growths(sample, channels=True):
        if growth[0] == dim:
            found = large.extended(cell.info, sample, growth, 1)
            if host_call(cell.info.op, found).comparable:
                return found
    return None
