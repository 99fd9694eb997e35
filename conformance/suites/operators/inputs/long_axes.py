"""Each axis of an operator's first tensor beyond the tiles of a kernel, the others as short as the operator takes them.

The large samples grow along one dimension, the one that gives most elements. A kernel has a limit for each axis.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from conformance.accelerators.capabilities import Mode
from conformance.numerics.budgets import OpClass
from conformance.numerics.trees import tensors
from conformance.suites.operators.calls import repeated_writes
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.calls.execution import host_call
from conformance.suites.operators.calls.facts import facts
from conformance.suites.operators.judge.cells import Cell

from . import large, tiers
from .comparing import check_with_forms
from .families import Stage, source
from .kinds import of_other_sizes, representative
from .widths_of_one import with_one_row

#: Numbers from 9560 on are no numbers of other samples.
_NUMBER = 9560
#: Rows beyond 2^12, with some behind it; a prime. Batches and channels of more than 65,535 have samples of their own.
_ROWS = 4159
#: Rows beyond 2^16, for functions of single elements, whose other axes are 1, and where other axes are short enough.
_MANY = 65_599
#: Dimensions of an image, and of a matrix.
_DIMS, _MATRIX = 4, 2
#: Elements of the largest input and of the largest output, with rows beyond 2^12 and with many more.
_MOST, _MOST_OF_MANY = 1 << 17, 1 << 18
#: Classes whose single elements take a hundred times as long as a product.
_DEAR = (OpClass.SPECIAL, OpClass.ITERATIVE)
#: Rows by which the elements of a row are measured.
_TRIED = 16


@source(Mode.INFERENCE, check_with_forms, stage=Stage.LARGE, once=True, fixed=True)
def long_axes(cell: Cell) -> Iterator[Call]:
    """Yield a representative sample with each axis long in turn, and one whose result has the most dimensions."""
    sample = representative(cell.fixed) if facts(cell.info.name).batches else of_other_sizes(cell)
    if sample is None:
        return
    if images := list(_images(cell)):
        yield from images
        return
    number = _NUMBER
    for given in [sample, *_of_most_dims(cell, sample)]:
        for dim in range(_free_dims(cell, given)):
            if (found := _long(cell, given, dim)) is not None:
                yield replace(found, number=number, source=f"a long axis {dim}")
                number += 1


def _free_dims(cell: Cell, sample: Call) -> int:
    """Return how many leading dimensions may be long.

    Of an operator that does not check its arguments, it is the batch; of a solver, those before a matrix, because a
    longer one would be singular.
    """
    if facts(cell.info.name).batches:
        return 1
    dims: int = sample.input.dim()
    return dims - _MATRIX if cell.op_class is OpClass.ITERATIVE else dims


def _images(cell: Cell) -> Iterator[Call]:
    """Yield samples of four dimensions for a function of single elements, one of which is long: all its values differ.

    The database gives vectors to these functions, which have kernels for images too.
    """
    # A polynomial of high degree takes a hundred times as long as a product.
    rows = _ROWS if cell.op_class is OpClass.SPECIAL else _MANY
    for dim in (0, 1, _DIMS - 1):
        shape = [1] * _DIMS
        shape[dim] = rows
        image = tiers.image(cell.info, cell.dtype, shape)
        if image is not None and host_call(cell.info.op, image).comparable:
            yield replace(image, number=_NUMBER + dim, source=f"a long axis {dim}")


def _of_most_dims(cell: Cell, first: Call) -> list[Call]:
    """Return another sample whose result has more dimensions than that of the first, such as a sum along one."""
    dims = {id(sample): _dims(cell, sample) for sample in (first, *cell.fixed)}
    best = max(cell.fixed, key=lambda sample: (dims[id(sample)], sample.elements))
    fits = isinstance(best.input, torch.Tensor) and large.fits(best) and best.input.numel() > 0
    return [best] if fits and dims[id(best)] > dims[id(first)] else []


def _dims(cell: Cell, sample: Call) -> int:
    """Return the most dimensions that a result of the call on the host has; 0 if the host refuses it."""
    made = host_call(cell.info.op, sample)
    return max((tensor.dim() for tensor in tensors(made.value)), default=0) if made.error is None else 0


def _long(cell: Cell, sample: Call, dim: int) -> Call | None:
    short = sample if facts(cell.info.name).batches else _shortened(cell, sample, dim)
    found = _grown(cell, short, dim)
    if found is not None and short is not sample and _points_nowhere(cell, found):
        # Of one element, each index is 0, which is also what is in memory that nobody wrote.
        return _grown(cell, sample, dim) or found
    return found


def _shortened(cell: Cell, sample: Call, kept: int) -> Call:
    """Return the sample with one row along each dimension of its first tensor but one, as far as the host takes it."""
    for dim in range(sample.input.dim()):
        sample = with_one_row(cell, sample, dim) or sample if dim != kept else sample
    return sample


def _points_nowhere(cell: Cell, sample: Call) -> bool:
    """Return whether a result of indices has the index 0 alone."""
    made = [t for t in tensors(host_call(cell.info.op, sample).value) if t.dtype is torch.int64 and t.numel()]
    return any(not bool(tensor.any()) for tensor in made)


def _grown(cell: Cell, short: Call, dim: int) -> Call | None:
    """Return the call with one long axis; None if the host does not compute it, or it has too many elements."""
    for growth in large.growths(short, channels=True):
        if growth[0] != dim:
            continue
        tried = large.extended(cell.info, short, growth, _TRIED)
        made = host_call(cell.info.op, tried)
        if not made.comparable:
            continue
        of_a_row = max(_elements(tried.arguments), _elements(made.value)) / _TRIED
        if of_a_row * _ROWS > _MOST:
            return None
        found = large.extended(cell.info, short, growth, _rows(cell, of_a_row, len(tensors(made.value))))
        # Which of two values written to one place stays is open.
        return None if repeated_writes.are_in(cell.info, found) else found
    return None


def _rows(cell: Cell, elements: float, results: int) -> int:
    """Return how long an axis gets whose rows have so many elements. Of some operators each row is a result."""
    is_cheap = cell.op_class not in _DEAR and results < _TRIED and elements * _MANY <= _MOST_OF_MANY
    return _MANY if is_cheap else _ROWS


def _elements(value: object) -> int:
    """Return the number of elements of the largest tensor in a value."""
    return max((tensor.numel() for tensor in tensors(value)), default=0)
