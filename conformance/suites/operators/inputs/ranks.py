"""Calls with one dimension more, with one less, with none, with five, and of one row; and with one tensor twice.

The database has few numbers of dimensions for most operators, and a tensor of its own in each place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from conformance.accelerators.capabilities import Mode
from conformance.numerics.trees import leaves, mapped, tensors
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.calls.classes import is_a, is_elementwise
from conformance.suites.operators.calls.execution import host_call
from conformance.suites.operators.calls.facts import facts
from conformance.suites.operators.judge.cells import Cell

from . import arrangements, model_sizes, tiers, variants
from .comparing import check_call, check_with_forms
from .families import Stage, source
from .kinds import of_other_sizes, unlike

#: Numbers from 9640 on are no numbers of other samples.
_NUMBER, _ONE_ROW, _ONE_TENSOR, _VECTOR, _FIVE, _BEHIND = 9640, 9653, 9659, 9939, 9940, 9985
#: Number of the sample of vectors alone, and the first one of those whose index has fewer places.
_VECTORS, _FEWER = 9995, 10060
#: The first number of samples that broadcast, their numbers of dimensions, and the places of each dimension.
_BROADCAST, _MANY, _LONG_SHAPE = 10090, (5, 6, 7, 8), (2, 3, 2, 2, 3, 2, 3, 2)
#: The first number of samples of a column and a row, and their places.
_TABLE_NUMBER, _TABLE = 10110, (5, 3)
#: Places of each dimension of an input, all unlike, and its largest number.
_PLACES, _LARGEST = (3, 4, 5, 6, 7), 30
#: Samples of an operator with unlike arguments or numbers of dimensions.
_SAMPLES = 5
#: Dimensions of what has rows, and of a batch of videos.
_MATRIX, _VIDEOS = 2, 5


def _raised(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor with one dimension more: a first row, and a second one in reverse order."""
    return torch.stack([tensor, tensor.flip(0)]) if tensor.dim() else torch.stack([tensor, tensor])


#: What has another number of dimensions, by the words for it.
_CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "one dimension more": _raised,
    "two dimensions more": lambda tensor: _raised(tensor)[:, None],
    "one dimension less": lambda tensor: tensor[-1].clone() if tensor.dim() else tensor,
    "no dimension": lambda tensor: tensor[(-1,) * tensor.dim()].clone(),
}


def _compare(cell: Cell, sample: Call) -> None:
    """Compare the call, its forms and two arrangements of it."""
    check_with_forms(cell, sample)
    # Where shapes differ, the order of the operands may say in which order the result lies in memory.
    alike = len({tensor.shape for tensor in sample.tensors}) == 1
    variants.rearranged(cell, sample, ("non-contiguous", "transposed in memory")[: 1 + alike])


@source(Mode.INFERENCE, _compare, stage=Stage.FORMS, once=True, fixed=True)
def ranks(cell: Cell) -> Iterator[Call]:
    """Yield samples with more, fewer and no dimensions, of all tensors and of the first one alone."""
    sample = of_other_sizes(cell)
    if sample is None or not all(tensor.numel() for tensor in sample.tensors):
        return
    number = _NUMBER
    for given in unlike(cell, cell.fixed, _SAMPLES, by_dims=True):
        yield replace(given, number=number, source="another number of dimensions")
        # Kernels that join dimensions, or take the first one for the number of elements, differ for one row.
        row = _changed(given, lambda tensor: tensor.flatten()[None, None], first_alone=False)
        if host_call(cell.info.op, row).comparable:
            yield replace(row, number=_ONE_ROW + number - _NUMBER, source="one row in three dimensions")
        number += 1
    for name, change in _CHANGES.items():
        for first_alone in (False, True) if len(sample.tensors) > 1 else (False,):
            found = _changed(sample, change, first_alone=first_alone)
            if host_call(cell.info.op, found).comparable:
                yield replace(found, number=number, source=f"{name}{' of the first tensor' if first_alone else ''}")
                number += 1


def _compare_in_place(cell: Cell, sample: Call) -> None:
    """Compare the call, its forms, and those with gaps, of which the in-place form writes between others' memory."""
    _compare(cell, sample)
    variants.in_place_of(cell, sample, ("non-contiguous",))


@source(Mode.INFERENCE, _compare_in_place, stage=Stage.FORMS, once=True, fixed=True)
def behind_indices(cell: Cell) -> Iterator[Call]:
    """Yield samples with indices, and one dimension more at the end of all other tensors.

    The dimension that the indices are of then has others in front of it and behind it.
    """
    if of_other_sizes(cell) is None:
        return
    dims = [sample for sample in cell.fixed if any(tensor.dtype is torch.int64 for tensor in sample.tensors)]
    for order, sample in enumerate(_of_each_dim(dims)):
        # Indices that have the dimensions of the input have the new one, too.
        made = (
            _changed(_from_the_start(sample), change, first_alone=False) for change in (_values_deepened, _deepened)
        )
        given = next((each for each in made if host_call(cell.info.op, each).comparable), None)
        if given is not None:
            yield replace(given, number=_BEHIND + order, source="one dimension more behind that of the indices")


def _of_each_dim(samples: list[Call]) -> list[Call]:
    """Return the largest matrix for each of the first numbers of the calls, which most often are dimensions."""
    found: dict[Any, Call] = {}
    for sample in sorted(samples, key=lambda each: -each.elements):
        if isinstance(sample.input, torch.Tensor) and sample.input.dim() == _MATRIX and sample.input.numel():
            number = next((leaf for leaf in leaves([sample.args, sample.kwargs]) if type(leaf) is int), None)
            found.setdefault(number, sample)
    return list(found.values())[:_SAMPLES]


def _from_the_start(sample: Call) -> Call:
    """Return the call with a dimension that is counted from the end counted from the start."""
    place = next((at for at, value in enumerate(sample.args) if type(value) is int), None)
    if place is None or sample.args[place] >= 0:
        return sample
    return sample.with_argument(place, sample.args[place] + sample.input.dim())


def _deepened(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor with a second column behind each element, in reverse order."""
    return torch.stack([tensor, tensor.flip(0)], -1) if tensor.dim() else tensor


def _values_deepened(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor with a second column behind each element; indices as they are."""
    return tensor if tensor.dtype is torch.int64 else _deepened(tensor)


def _changed(sample: Call, change: Callable[[torch.Tensor], torch.Tensor], *, first_alone: bool) -> Call:
    """Return the sample with another number of dimensions of its tensors."""

    def leaf(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or (first_alone and value is not sample.input):
            return value
        return change(value.detach())

    return sample.with_arguments(mapped(sample.arguments, leaf))


@source(Mode.INFERENCE, check_call, dtypes=(torch.float32, torch.float16, torch.bfloat16, torch.int64), fixed=True)
def five_dimensions(cell: Cell) -> Iterator[Call]:
    """Yield a sample of a function of elements with five dimensions in these dtypes: each may have kernels of its own.

    ``ranks`` has one dtype.
    """
    sample = of_other_sizes(cell) if is_elementwise(cell.info) else None
    if sample is None or len({tensor.shape for tensor in sample.tensors}) > 1 or not sample.input.numel():
        return
    given = _changed(sample, _to_five, first_alone=False)
    if given.input.dim() == _VIDEOS and host_call(cell.info.op, given).comparable:
        yield replace(given, number=_FIVE, source="five dimensions")


@source(Mode.INFERENCE, check_call, dtypes=(torch.float32, torch.float16, torch.bfloat16, torch.int64), fixed=True)
def broadcast_dimensions(cell: Cell) -> Iterator[Call]:
    """Yield two operands of five to eight dimensions, of which either has one place in every second dimension.

    A kernel joins neighbouring dimensions in which the operands are alike. Here it can join none, and one that tells
    a fixed number of dimensions apart counts those in front of them wrong.
    """
    if not is_a(cell.info, "BinaryUfuncInfo") or facts(cell.info.name).degree:
        return
    number = _BROADCAST
    for dims in _MANY:
        given = tiers.image(cell.info, cell.dtype, _LONG_SHAPE[-dims:])
        if given is None or len(given.args) != 1:
            continue
        for turn in (0, 1):
            left, right = (
                tensor[tuple(slice(0, 1) if (dim + order) % 2 else slice(None) for dim in range(dims))].clone()
                for order, tensor in enumerate((given.input, given.args[0]), turn)
            )
            found = replace(given, input=left, args=(right,), broadcasts_input=True)
            if host_call(cell.info.op, found).comparable:
                yield replace(found, number=number, source=f"broadcast in turn in {dims} dimensions")
            number += 1


@source(Mode.INFERENCE, check_call, fixed=True)
def columns_beside_rows(cell: Cell) -> Iterator[Call]:
    """Yield a column beside a row, and a row beside a column, in every dtype: each of the tensors is broadcast."""
    if not is_elementwise(cell.info) or facts(cell.info.name).degree:
        return
    given = tiers.image(cell.info, cell.dtype, _TABLE) or of_other_sizes(cell)
    if given is None or len(given.tensors) < 2 or {tensor.shape for tensor in given.tensors} != {given.input.shape}:
        return
    matrix = _changed(given, _as_table, first_alone=False)
    for turn in (0, 1):
        found = matrix
        for order, tensor in enumerate(matrix.tensors, turn):
            found = found.with_tensor(tensor, (tensor[:, :1] if order % 2 else tensor[:1]).clone())
        found = replace(found, broadcasts_input=True)
        if host_call(cell.info.op, found).comparable:
            yield replace(found, number=_TABLE_NUMBER + turn, source="a column beside a row")


def _as_table(tensor: torch.Tensor) -> torch.Tensor:
    """Return a matrix of the tensor's first elements, in turn."""
    count = torch.Size(_TABLE).numel()
    return tensor.reshape(-1)[torch.arange(count) % tensor.numel()].view(_TABLE)


def _to_five(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor with more rows until it has five dimensions."""
    while tensor.dim() < _VIDEOS:
        tensor = _raised(tensor)
    return tensor


@source(Mode.INFERENCE, check_call, stage=Stage.FORMS, once=True, fixed=True)
def vectors_alone(cell: Cell) -> Iterator[Call]:
    """Yield the last row of each tensor of a sample, if the operator takes such vectors and has no sample of them."""
    if of_other_sizes(cell) is None or is_elementwise(cell.info):
        return
    dims = [{tensor.dim() for tensor in sample.tensors} for sample in cell.fixed]
    for sample in unlike(cell, cell.fixed, _SAMPLES, by_dims=True) if {1} not in dims else ():
        rows = _changed(sample, lambda tensor: tensor[(-1,) * (tensor.dim() - 1)].clone(), first_alone=False)
        if host_call(cell.info.op, rows).comparable:
            yield replace(rows, number=_VECTORS, source="vectors alone")
            return


def _into_gaps(cell: Cell, sample: Call) -> None:
    variants.into_arranged(cell, sample, "outputs with gaps", arrangements.with_gaps)


@source(Mode.INFERENCE, _into_gaps, stage=Stage.FORMS, once=True, fixed=True)
def vectors(cell: Cell) -> Iterator[Call]:
    """Yield the last row of a sample alone, if it has several results: a kernel of its own may write those densely."""
    for sample in unlike(cell, cell.fixed, _SAMPLES) if cell.info.supports_out else ():
        if len(sample.tensors) != 1 or sample.tensors[0] is not sample.input or sample.input.dim() < _MATRIX:
            continue
        row = _changed(sample, lambda tensor: tensor[(-1,) * (tensor.dim() - 1)].clone(), first_alone=True)
        made = host_call(cell.info.op, row)
        if made.comparable and any(leaf.numel() > 1 for leaf in tensors(leaves(made.value))):
            yield replace(row, number=_VECTOR, source="one row alone")
            return


@source(Mode.INFERENCE, check_with_forms, stage=Stage.FORMS, once=True, fixed=True)
def one_tensor_twice(cell: Cell) -> Iterator[Call]:
    """Yield a sample whose first tensor is in the places of all that have its shape and dtype."""
    if of_other_sizes(cell) is None:
        return
    by_size = sorted(cell.fixed, key=lambda each: -each.elements)
    found = next((one for sample in by_size if (one := _with_one_tensor(sample)) is not None), None)
    if found is not None and host_call(cell.info.op, found).comparable:
        yield replace(found, number=_ONE_TENSOR, source="one tensor in all places")


def _with_one_tensor(sample: Call) -> Call | None:
    """Return the sample with its first tensor in the places of all that are like it; None if none is."""
    first = sample.input
    if not isinstance(first, torch.Tensor):
        return None
    alike = [t for t in sample.tensors if t is not first and (t.shape, t.dtype) == (first.shape, first.dtype)]

    def leaf(value: Any) -> Any:
        return first if any(value is tensor for tensor in alike) else value

    return sample.with_arguments(mapped(sample.arguments, leaf)) if alike else None


@source(Mode.INFERENCE, check_call, dtypes=(torch.float32, torch.float16, torch.bfloat16, torch.int64), fixed=True)
def fewer_places(cell: Cell) -> Iterator[Call]:
    """Yield samples with five dimensions, whose index has fewer places than the input in one of them.

    Kernels that join dimensions may join those of the input and of the index unlike each other.
    """
    sample = next(filter(_has_index_of_input, cell.fixed), None) if of_other_sizes(cell) is not None else None
    if sample is None:
        return
    number, given = _FEWER, model_sizes.whole(*_PLACES, dtype=cell.dtype, most=_LARGEST)
    for along, fewer in ((4, 0), (4, 1), (4, 2), (2, 1), (2, 3), (0, 1), (0, 4)):
        sizes = [size - 1 if dim == fewer else size for dim, size in enumerate(_PLACES)]
        index = torch.arange(sizes[along]).flip(0).view([-1 if dim == along else 1 for dim in range(len(sizes))])
        values = model_sizes.whole(*sizes, dtype=cell.dtype, most=_LARGEST)
        rest = (values if isinstance(each, torch.Tensor) else each for each in sample.args[2:])
        args = (along, index.expand(sizes).contiguous(), *rest)
        found = sample.with_arguments((given, args, sample.kwargs))
        if host_call(cell.info.op, found).comparable:
            yield replace(found, number=number, source=f"fewer places in dimension {fewer} along {along}")
        number += 1


def _has_index_of_input(sample: Call) -> bool:
    """Return whether a call has a dimension, then an index with as many dimensions as its input."""
    if not isinstance(sample.input, torch.Tensor) or len(sample.args) < _MATRIX or type(sample.args[0]) is not int:
        return False
    index = sample.args[1]
    is_index = isinstance(index, torch.Tensor) and index.dtype is torch.int64
    return is_index and index.dim() == sample.input.dim() == _MATRIX
