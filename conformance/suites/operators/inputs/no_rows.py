"""Dimensions without rows: of indices beside a tensor that has elements, and of each tensor.

A kernel that returns at once where there is nothing to do may leave its output as the allocator gave it, one that
steps from row to row may not end, and one that divides by the number of rows may raise.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from conformance.accelerators.capabilities import Mode
from conformance.numerics.trees import mapped
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.calls.execution import host_call
from conformance.suites.operators.calls.facts import facts
from conformance.suites.operators.judge.cells import Cell

from . import large
from .comparing import check_with_forms
from .families import source
from .kinds import of_other_sizes, unlike
from .widths_of_one import matrices

#: Numbers from 9580 on are no numbers of other samples.
_NUMBER = 9580
#: Numbers from 9400 on are no numbers of other samples either.
_EMPTY_NUMBER = 9400
#: Ways in which the tensors of a call lose the rows of one dimension together.
_WAYS = 2
#: Choices of dimensions that are tried for it: attention has nine tensors.
_TRIED = 32
#: Operators that read or write at indices, and check them. PyTorch's own embedding_bag reads beyond empty offsets.
_OPERATORS = frozenset(
    ("gather", "index_add", "index_copy", "index_fill", "index_put", "index_reduce", "index_select", "put", "scatter",
     "scatter_add", "scatter_reduce", "take", "take_along_dim", "nn.functional.embedding", "__getitem__")
)  # fmt: skip


@source(Mode.INFERENCE, check_with_forms, once=True, fixed=True)
def no_rows(cell: Cell) -> Iterator[Call]:
    """Yield samples whose indices have no rows along one dimension."""
    if cell.info.name not in _OPERATORS:
        return
    number = _NUMBER
    for sample in unlike(cell, cell.fixed) if of_other_sizes(cell) is not None else ():
        if isinstance(sample.input, torch.Tensor) and large.may_shrink(sample):
            for found in _without_rows(cell, sample):
                yield replace(found, number=number, source="no indices")
                number += 1


@source(Mode.INFERENCE, check_with_forms, once=True, fixed=True)
def empty_dimensions(cell: Cell) -> Iterator[Call]:
    """Yield calls without rows in a dimension."""
    yield from empty_of(cell)


def empty_of(cell: Cell) -> Iterator[Call]:
    """Yield a sample without rows in each dimension of its first tensor in turn, and without any elements."""
    counted = itertools.count(_EMPTY_NUMBER)
    sample = of_other_sizes(cell)
    if sample is None or not sample.input.numel() or facts(cell.info.name).needs_rows:
        return
    for given in [sample, *matrices(cell, sample)]:
        for dim in range(given.input.dim()):
            made = (large.extended(cell.info, given, growth, 0) for growth in _of_one_size(given, dim))
            for found in itertools.islice((one for one in made if host_call(cell.info.op, one).comparable), _WAYS):
                yield replace(found, number=next(counted), source=f"no rows in dimension {dim}")
    nothing = sample.with_arguments(mapped(sample.arguments, _emptied))
    if host_call(cell.info.op, nothing).comparable:
        yield replace(nothing, number=next(counted), source="no elements")


def _of_one_size(sample: Call, dim: int) -> Iterator[large.Growth]:
    """Yield a dimension of the first tensor with each choice of dimensions of the others that have its size, or none.

    Tensors of a product share a size that stands in other dimensions of each.
    """
    size = sample.input.shape[dim]
    others = [[*(n for n, other in enumerate(t.shape) if other == size), None] for t in sample.tensors[1:]]
    yield from itertools.islice(itertools.product((dim,), *others), _TRIED)


def _emptied(leaf: Any) -> Any:
    """Return a tensor of as many dimensions without elements."""
    if not isinstance(leaf, torch.Tensor) or not leaf.dim():
        return leaf
    return leaf.detach().new_empty([0] * leaf.dim()).requires_grad_(leaf.requires_grad)


def _growths(sample: Call) -> Iterator[large.Growth]:
    """Yield the dimensions of indices, alone and with a dimension of the same size in each tensor behind the first."""
    yield from large.growths(sample)
    for index in sample.tensors[1:]:
        if index.dtype is torch.int64 and index.dim() == 1:
            places = [[dim for dim, size in enumerate(t.shape) if size == len(index)] for t in sample.tensors[1:]]
            for end in (0, -1):
                yield (None, *(dims[end] if dims else None for dims in places))


def _without_rows(cell: Cell, sample: Call) -> Iterator[Call]:
    """Yield the call with tables and indices that have no rows, where the host computes it."""
    for growth in dict.fromkeys(_growths(sample)):
        grows = [tensor for tensor, dim in zip(sample.tensors, growth, strict=True) if dim is not None]
        if growth[0] is not None or not any(tensor.dtype is torch.int64 for tensor in grows):
            continue
        found = large.extended(cell.info, sample, growth, 0)
        if host_call(cell.info.op, found).comparable:
            yield found
