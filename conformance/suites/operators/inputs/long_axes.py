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
from .kinds import of_most_dims, of_other_sizes, representative
from .settings import plain_leaves, with_numbers_at
from .widths_of_one import with_one_row

#: Numbers from 9560 on are no numbers of other samples.
_NUMBER = 9560
#: Rows beyond 2^12, with some behind it; a prime. Batches and channels of more than 65,535 have samples of their own.
_ROWS = 4159
#: Rows beyond 2^16, for functions of single elements, whose other axes are 1, and where other axes are short enough.
_MANY = 65_599
#: Stand in the place of a tensor; no kernel has a rule of its own for them.
_A_NUMBER, _AN_INTEGER = 0.7, 3
#: Integers of a call that are tried, and the numbers of the first of such samples behind the others.
_COUNTS, _BY_NUMBER, _BY_COLUMNS = 3, 20, 25
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
    yield from _counted(cell)
    sample = representative(cell.fixed) if facts(cell.info.name).batches else of_other_sizes(cell)
    if sample is None:
        return
    if images := list(_images(cell)):
        yield from images
        return
    number = _NUMBER
    most = of_most_dims(cell, [sample])
    for given in [sample, *(each for each in most if _is_resizable(cell, each))]:
        for dim in range(_free_dims(cell, given)):
            if given is not sample and _grows_fast(cell, given, dim):
                continue
            if (found := _long(cell, given, dim)) is not None:
                yield replace(found, number=number, source=f"a long axis {dim}")
                number += 1
    if cell.op_class is OpClass.ITERATIVE:
        yield from _of_many_columns(cell, sample)


def _of_many_columns(cell: Cell, sample: Call) -> Iterator[Call]:
    """Yield the call of a solver with many right-hand sides; other matrices of it cannot be so wide."""
    matrices = [each for each in sample.tensors if each.dim() >= _MATRIX]
    for order, matrix in enumerate(matrices if len(sample.tensors) > 1 else ()):
        growth = tuple(each.dim() - 1 if each is matrix else None for each in sample.tensors)
        found = large.extended(cell.info, sample, growth, _ROWS)
        made = host_call(cell.info.op, found)
        # A matrix of many columns has another solution, of as many rows.
        if made.finite and any(tensor.shape[-1] == _ROWS for tensor in tensors(made.value) if tensor.dim()):
            yield replace(found, number=_NUMBER + _BY_COLUMNS + order, source="many right-hand sides")


def _is_resizable(cell: Cell, sample: Call) -> bool:
    return isinstance(sample.input, torch.Tensor) and large.fits(cell.info, sample) and sample.input.numel() > 0


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
        if image is None:
            continue
        number = _A_NUMBER if cell.dtype.is_floating_point else _AN_INTEGER
        numbers = [replace(image, args=(number, *image.args[1:]))] if image.args else []
        for order, given in enumerate([image, *numbers]):
            if host_call(cell.info.op, given).comparable:
                said = " and a number" * order
                yield replace(given, number=_NUMBER + dim + _DIMS * order, source=f"a long axis {dim}{said}")


def _counted(cell: Cell) -> Iterator[Call]:
    """Yield the call with many in the place of each integer that says how long a result is, such as that of bins."""
    known = facts(cell.info.name)
    if known.resizes or known.unchecked:
        return
    sample = representative(cell.fixed)
    first = [sample.input] if type(sample.input) is int else []
    numbers = [*first, *plain_leaves(sample)]
    places = [at for at, leaf in enumerate(numbers) if type(leaf) is int and leaf > 0]
    for order, place in enumerate(places[:_COUNTS]):
        given = [_with_count(sample, place - len(first), numbers[place] + more) for more in range(3)]
        of_few, of_one_more, of_two_more = (_elements(host_call(cell.info.op, each).value) for each in given)
        # Of combinations, each next length has many times as many.
        of_a_row = of_one_more - of_few
        if of_a_row > 0 and of_a_row == of_two_more - of_one_more and of_a_row * _ROWS <= _MOST:
            found = _with_count(sample, place - len(first), _ROWS)
            yield replace(found, number=_NUMBER + _BY_NUMBER + order, source=f"a long axis by the number {place}")


def _with_count(sample: Call, place: int, count: int) -> Call:
    """Return the call with a number in this place among the leaves behind the first argument, which is before them."""
    return replace(sample, input=count) if place < 0 else with_numbers_at(sample, {place: count})


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


def _grows_fast(cell: Cell, sample: Call, dim: int) -> bool:
    """Return whether a result grows faster than this axis, as that of combinations does."""
    growth = next((growth for growth in large.growths(sample, channels=True) if growth[0] == dim), None)
    if growth is None:
        return False
    tried = (large.extended(cell.info, sample, growth, rows) for rows in (_TRIED, 2 * _TRIED))
    once, twice = (_elements(host_call(cell.info.op, each).value) for each in tried)
    return twice > 2 * once


def _rows(cell: Cell, elements: float, results: int) -> int:
    """Return how long an axis gets whose rows have so many elements. Of some operators each row is a result."""
    is_cheap = cell.op_class not in _DEAR and results < _TRIED and elements * _MANY <= _MOST_OF_MANY
    return _MANY if is_cheap else _ROWS


def _elements(value: object) -> int:
    """Return the number of elements of the largest tensor in a value."""
    return max((tensor.numel() for tensor in tensors(value)), default=0)
