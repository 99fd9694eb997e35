"""Integer arguments in 32 bits, and indices that are equal: kernels have a path of their own for each index dtype."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from conformance.accelerators.capabilities import Mode
from conformance.numerics.trees import mapped
from conformance.suites.operators.calls import execution, repeated_writes
from conformance.suites.operators.calls.calls import HOST, Call
from conformance.suites.operators.calls.execution import attempt, call, host_call
from conformance.suites.operators.calls.facts import facts
from conformance.suites.operators.judge.cells import Cell
from conformance.suites.operators.judge.oracle import of_forward

from . import large, settings
from .arrangements import name_of
from .comparing import check_call, check_with_forms
from .families import Stage, check, source
from .kinds import representative, unlike
from .variants import in_place

#: Numbers from 9000 on are no numbers of other samples.
_NUMBER, _APART, _OF_TABLES, _WITHOUT_DIMS = 9000, 9010, 9020, 10120
#: Samples of an operator whose index loses its dimensions.
_FEW = 2
#: Names of arguments that are indices.
_NAMES = ("index", "indices")
#: Equal indices: more than eight bits count.
_OFTEN = 600
#: Places in the row of a table: more than a group of 32 threads has, and no multiple of a vector.
_ROW = 77
#: Dtypes of indices.
_KINDS = (torch.int64, torch.int32)


@check(Mode.INFERENCE, once=True)
def indices(cell: Cell) -> None:
    """Compare results for indices of 32 and 64 bits, some of which are equal, with the host's."""
    for sample in unlike(cell, cell.samples):
        for tensor in _indices(sample):
            for kind in _KINDS:
                _check_kind(cell, sample, tensor, kind)
            for late in _late(cell.info, sample, tensor) if facts(cell.info.name).bounded_indices else ():
                _check_often(cell, late)
                in_place(cell, late)
            for often in _often(cell.info, sample, tensor):
                _check_often(cell, often)
                for with_one_value in _with_one_value(cell.info, often):
                    _check_often(cell, with_one_value)
    for sample in (*narrow(cell, cell.samples), *_apart(cell), *_rows_of_tables(cell)):
        check_narrow(cell, sample, check_call)


@source(Mode.INFERENCE, check_with_forms, stage=Stage.FORMS, fixed=True)
def indices_without_dimensions(cell: Cell) -> Iterator[Call]:
    """Yield a sample with one index that has no dimensions, in every dtype, and one of which nothing has dimensions."""
    known = facts(cell.info.name)
    if known.unchecked or known.resizes:
        return
    number = _WITHOUT_DIMS
    for sample in unlike(cell, [sample for sample in cell.fixed if _named(cell, sample)], _FEW, by_dims=True):
        for found in _without_dimensions(sample, _named(cell, sample)[0]):
            if host_call(cell.info.op, found).comparable and not repeated_writes.are_in(cell.info, found):
                yield replace(found, number=number, source="an index without dimensions")
                number += 1


def _named(cell: Cell, sample: Call) -> list[torch.Tensor]:
    """Return the tensors that are indices by the names of their arguments; of int64, others are values."""
    values = ("",) if cell.dtype is not torch.int64 else ()
    return [each for each in _indices(sample) if name_of(cell.info, sample, each) in (*_NAMES, *values)]


def _without_dimensions(sample: Call, tensor: torch.Tensor) -> Iterator[Call]:
    """Yield the sample with one index without dimensions beside one row, and with all tensors without dimensions."""
    for one in _with_one_index(sample, tensor) if isinstance(sample.input, torch.Tensor) else ():
        index = next(each for each in one.tensors if each.dtype is torch.int64 and each is not one.input)
        yield one.with_tensor(index, index[0].clone())
    yield sample.with_arguments(mapped(sample.arguments, _without))


def _without(leaf: Any) -> Any:
    """Return the last element of a tensor, without dimensions."""
    return leaf.detach()[(-1,) * leaf.dim()].clone() if isinstance(leaf, torch.Tensor) and leaf.numel() else leaf


def _apart(cell: Cell) -> Iterator[Call]:
    """Yield volumes whose first and last dimension have indices of each dtype, and the one between them has none."""
    if cell.info.full_name != "__getitem__":
        return
    volume = torch.arange(3 * 4 * 5).to(cell.dtype).view(3, 4, 5)
    for order, kind in enumerate(_KINDS):
        first, last = torch.tensor([2, 0, 1], dtype=kind), torch.tensor([1, 4, 3], dtype=kind)
        places = ((first, slice(None), last), (first, slice(1, 3), last.view(3, 1)), (slice(None), first, last))
        for number, key in enumerate(places):
            yield Call(_APART + len(places) * order + number, volume, (key,), source=f"indices of {kind} apart")


def _rows_of_tables(cell: Cell) -> Iterator[Call]:
    """Yield samples with many indices, which are the first row of a table in 32 bits: so a cache's places are kept.

    The row is dense and at the start of its memory, and yet a part of it.
    """
    chosen = unlike(cell, [sample for sample in cell.samples if _indices(sample)])
    along = filter(None, map(_along_the_first, chosen[:1]))
    for order, sample in enumerate((*chosen, *along) if not facts(cell.info.name).unchecked else ()):
        if (indexed := _indices(sample)) and (longer := _with_many(cell.info, sample, indexed[-1])) is not None:
            place = next(number for number, tensor in enumerate(sample.tensors) if tensor is indexed[-1])
            index = longer.tensors[place].to(torch.int32)
            row = torch.stack([index, index.flip(-1)])[0]
            given = longer.with_tensor(longer.tensors[place], row)
            yield replace(given, number=_OF_TABLES + order, source="indices that are a row of a table")


def _along_the_first(sample: Call) -> Call | None:
    """Return the call along the first dimension, if its first number says that it is along another one."""
    place = next((at for at, value in enumerate(sample.args) if type(value) is int), None)
    dims = sample.input.dim() if isinstance(sample.input, torch.Tensor) else 0
    if place is None or not dims or sample.args[place] % dims == 0:
        return None
    dim = sample.args[place] % dims

    def turned(leaf: Any) -> Any:
        is_turned = isinstance(leaf, torch.Tensor) and leaf.dim() == dims
        return leaf.detach().transpose(0, dim).contiguous() if is_turned else leaf

    return sample.with_arguments(mapped(sample.arguments, turned)).with_argument(place, 0)


def _with_many(info: Any, sample: Call, tensor: torch.Tensor) -> Call | None:
    """Return the sample with many indices in one of its tensors; None if the host takes no more than it has."""
    place = next(number for number, other in enumerate(sample.tensors) if other is tensor)
    for growth in large.growths(sample) if large.fits(info, sample) else ():
        if growth[place] is not None:
            longer = large.extended(info, sample, growth, _ROW)
            if not repeated_writes.are_in(info, longer) and host_call(info.op, longer).comparable:
                return longer
    return None


def narrow(cell: Cell, samples: Sequence[Call]) -> Iterator[Call]:
    """Yield samples, also with other settings, with all indices in 32 bits, two of them equal where that is defined."""
    indexed = [sample for sample in samples if _indices(sample)]
    plainest = representative(indexed, plain=True) if indexed else None
    kinds = unlike(cell, indexed, by_words=True)
    others = settings.with_defaults(cell, plainest) if plainest is not None else ()
    present = (other for sample in indexed for other in settings.with_present_index(cell, sample))
    for sample in (*kinds, *others, *present):
        given, found = sample, _indices(sample)
        for tensor in found:
            # Offsets beside indices are in order.
            repeats = len(found) == 1 and _may_repeat(cell.info, tensor)
            index = _with_equal_ends(tensor) if repeats else tensor
            given = given.with_tensor(tensor, index.to(torch.int32))
        if host_call(cell.info.op, given).comparable:
            yield given.named(change="all indices in int32")


def _indices(sample: Call) -> list[torch.Tensor]:
    """Return the indices behind the input that are on the device."""
    return [
        tensor
        for number, tensor in enumerate(sample.tensors)
        if tensor.dtype is torch.int64 and tensor is not sample.input and number not in sample.on_host
    ]


def check_narrow(cell: Cell, sample: Call, compare: Callable[[Cell, Call], object]) -> None:
    """Compare a call with indices in 32 bits; where the documentation names 64 bits alone, a refusal is a note."""
    try:
        compare(cell, sample)
    except (RuntimeError, IndexError, TypeError):
        if facts(cell.info.name).int32_indices:
            raise
        cell.check.metric("indices", "refused in 32 bits")


def repeated(info: Any, samples: list[Call]) -> Iterator[Call]:
    """Yield the samples with equal indices in one row, in two rows, and of one index that occurs very often.

    The operator has to be defined for these.
    """
    for sample in samples:
        for tensor in sample.tensors:
            if tensor.dtype is torch.int64 and tensor is not sample.input:
                if _may_repeat(info, tensor):
                    yield from _repeated(sample, tensor)
                yield from _often(info, sample, tensor)


def _often(info: Any, sample: Call, tensor: torch.Tensor) -> Iterator[Call]:
    """Yield the sample with so many equal indices that a counter of eight bits or one group of threads has fewer."""
    if not tensor.dim() or not (facts(info.name).equal_indices or _accumulates(info, sample)):
        return
    if sample.kwargs.get("include_last_offset"):
        return  # the last offset is the number of indices, and PyTorch does not check it
    place = next(number for number, other in enumerate(sample.tensors) if other is tensor)
    size = tensor.shape[0]
    # What is written has a row for each index.
    with_rows = tuple(
        0 if number and other.dim() and other.shape[0] == size else None for number, other in enumerate(sample.tensors)
    )
    for growth in (with_rows, *large.growths(sample)):
        dim = growth[place]
        if dim is None:
            continue
        longer = large.extended(info, sample, growth, _OFTEN + tensor.shape[dim])
        index = longer.tensors[place].clone()
        index.narrow(dim, 0, _OFTEN).copy_(index.select(dim, 0).unsqueeze(dim).clone())
        found = replace(
            longer.with_tensor(longer.tensors[place], index), number=_NUMBER, source=f"{_OFTEN} equal indices"
        )
        if attempt(call, info, found.on(HOST)).error is None:
            yield found
            return


def _late(info: Any, sample: Call, tensor: torch.Tensor) -> Iterator[Call]:
    """Yield the sample with indices at the end of a long dimension: with one index where the host takes one.

    A kernel that keeps an index in few bits, or works on one block of places, is right for the first ones.
    """
    for shorter in (*_with_one_index(sample, tensor), sample):
        index = next(t for t in shorter.tensors if t.dtype is torch.int64 and t is not shorter.input)
        found = [late for growth in _of_input_alone(shorter) if (late := _at_the_end(info, shorter, growth, index))]
        if found:
            yield from found
            return


def _with_one_index(sample: Call, tensor: torch.Tensor) -> Iterator[Call]:
    """Yield the sample with the first index alone, and with one row of the tensors that have one for each index."""
    if tensor.dim() != 1 or tensor.numel() < 2:
        return
    for dim in range(sample.input.dim()):
        one = sample.with_tensor(tensor, tensor[:1].clone())
        for other in sample.tensors:
            rows = other is not sample.input and other is not tensor and other.dim() == sample.input.dim()
            if rows and other.shape[dim] == tensor.numel():
                row = other.detach().narrow(dim, 0, 1).clone()
                one = one.with_tensor(other, row.requires_grad_(other.requires_grad))
        yield one


def _of_input_alone(sample: Call) -> Iterator[large.Growth]:
    """Yield growths along each dimension of the first input, in which no other tensor grows."""
    dims = sample.input.dim() if isinstance(sample.input, torch.Tensor) else 0
    for dim in range(dims if dims and sample.input.numel() else 0):
        yield tuple(dim if tensor is sample.input else None for tensor in sample.tensors)


def _at_the_end(info: Any, sample: Call, growth: large.Growth, index: torch.Tensor) -> Call | None:
    """Return the sample with a long input and the last indices of it; None if the host takes no such index."""
    longer = large.extended(info, sample, growth, _OFTEN)
    last = (_OFTEN - 1 - torch.arange(index.numel()) % _OFTEN).view(index.shape)
    found = replace(longer.with_tensor(index, last), number=_NUMBER + 1, source="the last indices of a long dimension")
    return found if attempt(call, info, found.on(HOST)).error is None else None


def _with_one_value(info: Any, sample: Call) -> Iterator[Call]:
    """Yield the sample with one value for all equal indices, if what is written to one place is added up."""
    values = sample.tensors[-1]
    if _accumulates(info, sample) and values.is_floating_point() and values.numel() > 1:
        one = sample.with_tensor(values, values.detach().reshape(-1)[0].clone())
        if attempt(call, info, one.on(HOST)).error is None:
            yield replace(one, source=f"one value for {_OFTEN} equal indices")


def _accumulates(info: Any, sample: Call) -> bool:
    """Return whether what is written to one place is added up, because an argument says so."""
    return facts(info.name).accumulates and any(value is True for value in (*sample.args, *sample.kwargs.values()))


def _check_often(cell: Cell, sample: Call) -> None:
    """Compare a call with many equal indices: its sums are as long as they are equal."""
    expected = call(cell.info.op, sample.on(HOST))
    found = execution.execute(cell.info.op, cell.on(sample))
    cell.judge.result(sample, found, expected, of_forward(cell.info, sample), cell.judge.length(sample, expected))


def _repeated(sample: Call, tensor: torch.Tensor) -> Iterator[Call]:
    """Yield the call with equal indices in the place of a tensor, in one row and in two."""
    equal = _with_equal_ends(tensor)
    for tier, index in (("equal indices", equal), ("equal indices in two rows", torch.stack([equal, equal.flip(-1)]))):
        yield replace(sample.with_tensor(tensor, index), source=tier)


def _may_repeat(info: Any, tensor: torch.Tensor) -> bool:
    """Return whether the result is defined for equal indices in this tensor, which has several."""
    return facts(info.name).equal_indices and tensor.dim() > 0 and tensor.shape[-1] > 1


def _with_equal_ends(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy in which the last index of each row is the first one."""
    index = tensor.clone(memory_format=torch.contiguous_format)
    index[..., -1] = index[..., 0]
    return index


def _check_kind(cell: Cell, sample: Call, tensor: torch.Tensor, kind: torch.dtype) -> None:
    """Compare one call with an index in this dtype; the last index is the first one where the result is defined."""
    repeats = _may_repeat(cell.info, tensor)
    if kind is torch.int64 and not repeats:
        return  # the plain results show it
    index = _with_equal_ends(tensor) if repeats else tensor.clone(memory_format=torch.contiguous_format)
    name = f"{'equal ' if repeats else ''}indices in {str(kind).removeprefix('torch.')}"
    changed = sample.with_tensor(tensor, index.to(kind)).named(change=name)
    host, device = changed.on(HOST), cell.on(changed)
    expected = attempt(call, cell.info, host)
    if expected.error is not None:
        return
    found = attempt(execution.execute, cell.info, device)
    if found.error is not None:
        if kind is torch.int64 or facts(cell.info.name).int32_indices:
            raise found.error
        cell.check.metric("indices", "refused in 32 bits")  # a note: the documentation names 64 bits alone
        return
    n = cell.judge.length(host, expected.value)
    cell.judge.result(changed, found.value, expected.value, of_forward(cell.info, changed), n)
