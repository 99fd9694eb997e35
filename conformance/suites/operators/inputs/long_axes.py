"""Each axis of an operator's first tensor beyond the tiles of a kernel, the others as short as the operator takes them.

The large samples grow along one dimension, the one that gives most elements. A kernel has a limit for each axis.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from conformance.accelerators.capabilities import Mode
from conformance.numerics.budgets import OpClass
from conformance.numerics.trees import tensors
from conformance.suites.operators.calls import repeated_writes
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.calls.execution import host_call
from conformance.suites.operators.judge.cells import Cell

from . import large, variants
from .comparing import check_call
from .families import Stage, source
from .kinds import of_other_sizes
from .widths_of_one import with_all_but_one

#: Numbers from 9560 on are no numbers of other samples.
_NUMBER = 9560
#: A prime beyond 2^12. Batches and channels of more than 65,535 have samples of their own.
_ROWS = 4099
#: Elements of the largest input and of the largest output.
_MOST = 1 << 16
#: Rows by which the elements of a row are measured.
_TRIED = 16


@source(Mode.INFERENCE, check_call, stage=Stage.LARGE, once=True, fixed=True)
def long_axes(cell: Cell) -> Iterator[Call]:
    """Yield a representative sample with each axis long in turn."""
    sample = of_other_sizes(cell)
    if sample is None or cell.op_class is OpClass.ITERATIVE:
        return
    # The database gives vectors to functions of single elements; these have kernels for images too.
    image = variants.image_of(cell) if sample.input.dim() == 1 else None
    given = sample if image is None else image
    for dim in range(given.input.dim()):
        if (found := _long(cell, given, dim)) is not None:
            yield replace(found, number=_NUMBER + dim, source=f"a long axis {dim}")


def _long(cell: Cell, sample: Call, dim: int) -> Call | None:
    short = with_all_but_one(cell, sample, dim) or sample
    for growth in large.growths(short):
        if growth[0] != dim:
            continue
        tried = large.extended(cell.info, short, growth, _TRIED)
        made = host_call(cell.info.op, tried)
        if made.error is not None or made.draws:
            continue
        if max(_elements(tried.arguments), _elements(made.value)) / _TRIED * _ROWS > _MOST:
            return None
        found = large.extended(cell.info, short, growth, _ROWS)
        # Which of two values written to one place stays is open.
        return None if repeated_writes.are_in(cell.info, found) else found
    return None


def _elements(value: object) -> int:
    return max((tensor.numel() for tensor in tensors(value)), default=0)
