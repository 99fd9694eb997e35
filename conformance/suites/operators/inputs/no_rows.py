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
        if isinstance(sample.input, torch.Tensor) and large.fits(sample):
            for found in _without_rows(cell, sample):
                yield replace(found, number=number, source="no indices")
                number += 1


def _growths(sample: Call) -> Iterator[large.Growth]:
    """Yield the dimensions of indices, alone and with a dimension of the same size in each tensor behind the first."""
    yield from large.growths(sample)
    for index in sample.tensors[1:]:
        if index.dtype is torch.int64 and index.dim() == 1:
            places = [[dim for dim, size in enumerate(t.shape) if size == len(index)] for t in sample.tensors[1:]]
            for end in (0, -1):
                yield (None, *(dims[end] if dims else None for dims in places))


def _without_rows(cell: Cell, sample: Call) -> Iterator[Call]:
    for growth in dict.fromkeys(_growths(sample)):
        grows = [tensor for tensor, dim in zip(sample.tensors, growth, strict=True) if dim is not None]
        if growth[0] is not None or not any(tensor.dtype is torch.int64 for tensor in grows):
            continue
        found = large.extended(cell.info, sample, growth, 0)
        if host_call(cell.info.op, found).comparable:
            yield found
