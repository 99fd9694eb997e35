"""Each axis of an operator's first tensor beyond the tiles of a kernel, the others as short as the operator takes them.

The large samples grow along one dimension, the one that gives most elements. A kernel has a limit for each axis.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
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
from .kinds import of_most_dims, of_other_sizes, representative, unlike
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
#: Stands in the place of 0 where a count begins to count.
_A_COUNT = 64
#: Integers of a call that are tried, and the numbers of the first of such samples behind the others.
_COUNTS, _BY_NUMBER, _BY_COLUMNS = 3, 20, 25
#: Dimensions of an image, and of a matrix, and the one of channels.
_DIMS, _MATRIX, _CHANNELS = 4, 2, 1
#: Elements of the largest input and of the largest output, with rows beyond 2^12 and with many more.
_MOST, _MOST_OF_MANY = 1 << 17, 1 << 18
#: Elements of the largest output that has a row and a column for each row of an input.
_MOST_OF_SQUARES = 1 << 22
#: Numbers that repeat in an image whose gradients are judged; they divide no block.
_VALUES = 19
#: Classes whose single elements take a hundred times as long as a product.
_DEAR = (OpClass.SPECIAL, OpClass.ITERATIVE)
#: Dtypes whose sums have more bits, terms of such a sum, the largest one, by how much a small one is less than its last
#: bit, and the number of the sample behind the others.
_IN_16_BITS, _TERMS, _LARGE_TERM, _LOST, _BY_TERMS = (torch.float16, torch.bfloat16), 2053, 256.0, 256, 30
#: Samples of which a cell has sums, and tensors among which there are factors.
_OF_DIMS, _FACTORS = 5, 3
#: Rows by which the elements of a row are measured.
_TRIED = 16


@source(Mode.INFERENCE, check_with_forms, stage=Stage.LARGE, once=True, fixed=True)
def long_axes(cell: Cell) -> Iterator[Call]:
    """Yield a representative sample with each axis long in turn, and one whose result has the most dimensions."""
    yield from _counted(cell)
    samples = _samples(cell)
    if not samples:
        return
    if images := list(_images(cell)):
        yield from images
        return
    yield from _of_each_axis(cell, samples)
    if cell.op_class is OpClass.ITERATIVE:
        yield from _of_many_columns(cell, samples[0])
    elif (found := _grown(cell, samples[0], None)) is not None and host_call(cell.info.op, found).finite:
        # A product of as many numbers is none, or depends on their order.
        yield replace(found, number=_NUMBER + _BY_COLUMNS, source="many indices")


def trained(cell: Cell) -> Iterator[Call]:
    """Yield a representative sample with each axis long in turn, for gradients.

    Thousands of results, and results that grow faster than an input, cost more than a gradient of theirs shows.
    """
    samples = _samples(cell)
    images = [_with_values_of(samples[0], image) for image in _images(cell)] if samples else []
    for found in images or _of_each_axis(cell, samples, slowly=True):
        if len(tensors(host_call(cell.info.op, found).value)) <= _TRIED:
            yield found


def _with_values_of(sample: Call, image: Call) -> Call:
    """Return the image with the first numbers of the sample, again and again, and with gradients.

    Of many random numbers, some lie where a gradient makes a rounding large. Those of the sample are judged as well.
    """
    for tensor, known in zip(image.tensors, sample.tensors, strict=False):
        if tensor.is_floating_point() and known.is_floating_point():
            few = known.detach().flatten()[:_VALUES]
            many = few.repeat(-(-tensor.numel() // few.numel()))[: tensor.numel()]
            image = image.with_tensor(tensor, many.view(tensor.shape).requires_grad_())
    return image


def _of_each_axis(cell: Cell, samples: Sequence[Call], *, slowly: bool = False) -> Iterator[Call]:
    number = _NUMBER
    for given in samples:
        for dim in range(_free_dims(cell, given)):
            is_usual = given is samples[0] and isinstance(given.input, torch.Tensor) and not slowly
            if not is_usual and _grows_fast(cell, given, dim):
                continue
            if (found := _long(cell, given, dim)) is not None:
                yield replace(found, number=number, source=f"a long axis {dim}")
                number += 1


@source(Mode.INFERENCE, check_with_forms, stage=Stage.LARGE, dtypes=_IN_16_BITS, fixed=True, checked=True)
def long_sums(cell: Cell) -> Iterator[Call]:
    """Yield sums in 16 bits of a large term and many small ones: each of these is lost beside it, and all are not."""
    if cell.op_class not in (OpClass.REDUCTION, OpClass.CONTRACTION) or facts(cell.info.name).short_in_16_bits:
        return
    for sample in unlike(cell, cell.fixed, _OF_DIMS, by_dims=True):
        growth = _summed(cell, sample) if large.fits(cell.info, sample) else None
        if growth is None:
            continue
        found = _of_unequal_terms(large.extended(cell.info, sample, growth, _TERMS), growth)
        if host_call(cell.info.op, found).finite:
            yield replace(found, number=_NUMBER + _BY_TERMS, source="a large term and small ones")
            return


def _summed(cell: Cell, sample: Call) -> large.Growth | None:
    """Return dimensions along which a sample is summed: with more rows it has no larger result."""
    for growth in (*large.growths(sample), *_pairs(sample)):
        plan = large.plan_of(cell.info, sample, growth)
        if plan is not None and plan.outputs == 0 and plan.inputs * _TERMS <= _MOST:
            return growth
    return None


def _pairs(sample: Call) -> Iterator[large.Growth]:
    """Yield dimensions of two tensors that are equal, in other places, as those of the factors of a product are."""
    numbered = [
        (number, tensor) for number, tensor in enumerate(sample.tensors[:_FACTORS]) if tensor.is_floating_point()
    ]
    for (first, left), (second, right) in itertools.combinations(numbered, 2):
        for dims in itertools.product(range(left.dim()), range(right.dim())):
            if left.shape[dims[0]] == right.shape[dims[1]] and (first or dims[0] != dims[1]):
                chosen = dict(zip((first, second), dims, strict=True))
                yield tuple(chosen.get(number) for number in range(len(sample.tensors)))


def _of_unequal_terms(sample: Call, growth: large.Growth) -> Call:
    """Return the call with one large row and small ones in its first tensor, and with ones in the others that grew."""
    grown = [(tensor, dim) for tensor, dim in zip(sample.tensors, growth, strict=True) if dim is not None]
    for tensor, dim in grown:
        if not tensor.is_floating_point():
            continue
        terms = torch.ones_like(tensor)
        if tensor is grown[0][0]:
            terms.mul_(_LARGE_TERM * torch.finfo(tensor.dtype).eps / _LOST).select(dim, 0).fill_(_LARGE_TERM)
        sample = sample.with_tensor(tensor, terms)
    return sample


def _samples(cell: Cell) -> list[Call]:
    """Return the samples whose axes get long: the representative one, and others that are unlike it."""
    sample = representative(cell.fixed)
    if facts(cell.info.name).batches:
        # Without some of its tensors, it is another overload.
        others = [each for each in unlike(cell, cell.fixed) if len(each.tensors) < len(sample.tensors)]
        return [sample, *others[:1]]
    if facts(cell.info.name).unchecked or facts(cell.info.name).resizes or not _is_resizable(cell, sample):
        return []
    further = (*of_most_dims(cell, [sample]), *_of_one_shape(cell, sample))
    return [sample, *(each for each in further if _is_resizable(cell, each))]


def _of_one_shape(cell: Cell, sample: Call) -> list[Call]:
    """Return a sample whose tensors have one shape, if those of another differ: a broadcast axis is long in none."""

    def shapes(one: Call) -> set[tuple[int, ...]]:
        return {tuple(tensor.shape) for tensor in one.tensors}

    if len(shapes(sample)) == 1 or not cell.info.supports_out:
        return []
    alike = [one for one in unlike(cell, cell.fixed, len(cell.fixed), by_dims=True) if len(one.tensors) > 1]
    found = [one for one in alike if len(shapes(one)) == 1 and len(one.tensors) == len(sample.tensors)]
    return sorted(found, key=lambda one: -one.tensors[0].dim())[:1]


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
    """Return whether the first tensor, alone or of a list, has elements, and may have other sizes."""
    first = sample.input[0] if isinstance(sample.input, (list, tuple)) and sample.input else sample.input
    return isinstance(first, torch.Tensor) and large.fits(cell.info, sample) and first.numel() > 0


def _free_dims(cell: Cell, sample: Call) -> int:
    """Return how many leading dimensions may be long; of a solver, those before a matrix, as it would be singular."""
    dims = sample.tensors[0].dim()
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
    places = [at for at, leaf in enumerate(numbers) if type(leaf) is int and leaf >= 0]
    for order, place in enumerate(places[:_COUNTS]):
        for given in _ever_shorter(cell, sample):
            of_a_row = _of_a_count(cell, given, place - len(first), numbers[place] or _A_COUNT)
            if of_a_row * _ROWS <= _MOST:
                break
        if 0 < of_a_row * _ROWS <= _MOST:
            found = _with_count(given, place - len(first), _rows(cell, of_a_row, 1))
            yield replace(found, number=_NUMBER + _BY_NUMBER + order, source=f"a long axis by the number {place}")


def _ever_shorter(cell: Cell, sample: Call) -> Iterator[Call]:
    """Yield the sample, and then with one row along its leading dimensions, one more each time."""
    yield sample
    for dim in range(sample.input.dim() if of_other_sizes(cell) is sample else 0):
        sample = with_one_row(cell, sample, dim) or sample
        yield sample


def _of_a_count(cell: Cell, sample: Call, place: int, count: int) -> int:
    """Return by how many elements the result is larger for the next number; 0 if it does not grow steadily.

    Of combinations, each next length has many times as many.
    """
    given = (_with_count(sample, place, count + more) for more in range(3))
    few, one_more, two_more = (_elements(host_call(cell.info.op, each).value) for each in given)
    return one_more - few if one_more - few == two_more - one_more else 0


def _with_count(sample: Call, place: int, count: int) -> Call:
    """Return the call with a number in this place among the leaves behind the first argument, which is before them."""
    return replace(sample, input=count) if place < 0 else with_numbers_at(sample, {place: count})


def _long(cell: Cell, sample: Call, dim: int) -> Call | None:
    """Return the sample with one long axis, the others as short as something shows; None if there is no such call."""
    first: Call | None = None
    for kept in _kept(cell, sample, dim):
        found = _grown(cell, _shortened(cell, sample, kept), dim)
        if found is None and not facts(cell.info.name).batches:
            return first
        # Of one element, each index is 0, which is also what is in memory that nobody wrote.
        if found is not None and not _points_nowhere(cell, found):
            return found
        first = first or found
    return first


def _kept(cell: Cell, sample: Call, dim: int) -> Iterator[set[int]]:
    """Yield dimensions that stay beside a long one: none, each other one, and all; of a batch norm all, or all but one.

    What has one element for each channel is its own mean.
    """
    others = [each for each in range(sample.tensors[0].dim()) if each != dim]
    if facts(cell.info.name).batches:
        yield from ({dim, *others}, {dim, *others[:-1]})
        return
    yield {dim}
    yield from ({dim, other} for other in reversed(others[1:]))
    yield {dim, *others}


def _shortened(cell: Cell, sample: Call, kept: Collection[int]) -> Call:
    """Return the sample with one row along each dimension of its first tensor but some, as far as the host takes it."""
    for dim in range(sample.tensors[0].dim()):
        sample = sample if dim in kept else with_one_row(cell, sample, dim) or sample
    return sample


def _points_nowhere(cell: Cell, sample: Call) -> bool:
    """Return whether a result of indices has the index 0 alone."""
    made = [t for t in tensors(host_call(cell.info.op, sample).value) if t.dtype is torch.int64 and t.numel()]
    return any(not bool(tensor.any()) for tensor in made)


def _grown(cell: Cell, short: Call, dim: int | None) -> Call | None:
    """Return the call with one long axis, or with many indices; None if the host does not compute it as large."""
    for growth in _growths(cell, short, dim):
        tried = large.extended(cell.info, short, growth, _TRIED)
        made = host_call(cell.info.op, tried)
        if not made.comparable:
            continue
        of_a_row = max(_elements(tried.arguments), _elements(made.value)) / _TRIED
        if of_a_row * _ROWS > _MOST:
            return None
        rows = _rows(cell, of_a_row, len(tensors(made.value)))
        rows = min(rows, _rows_of_a_square(cell, short, growth, _elements(made.value), _elements(tried.arguments)))
        found = large.extended(cell.info, short, growth, rows)
        # Which of two values written to one place stays is open.
        return None if repeated_writes.are_in(cell.info, found) else found
    return None


def _rows_of_a_square(cell: Cell, short: Call, growth: large.Growth, made: int, given: int) -> int:
    """Return how many rows fit where a result has a column for each of them too; ``made`` is that of the rows tried."""
    if made <= given:
        return _MANY
    twice = _elements(host_call(cell.info.op, large.extended(cell.info, short, growth, 2 * _TRIED)).value)
    return math.isqrt(_MOST_OF_SQUARES // (made // _TRIED**2)) - 1 if twice == 4 * made else _MANY


def _growths(cell: Cell, sample: Call, dim: int | None) -> Iterator[large.Growth]:
    """Yield the ways in which this dimension may grow, or indices alone without one.

    A batch norm does not check that each vector has one element per channel, and would write beyond a shorter one.
    """
    for growth in large.growths(sample, channels=True):
        fits = all((other is not None) is (dim == _CHANNELS) for other in growth[1:])
        if growth[0] == dim and (fits or not facts(cell.info.name).batches):
            yield growth


def _grows_fast(cell: Cell, sample: Call, dim: int) -> bool:
    """Return whether a result grows faster than this axis, as that of combinations does."""
    growth = next(_growths(cell, sample, dim), None)
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
