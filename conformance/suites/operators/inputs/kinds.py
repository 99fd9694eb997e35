"""Choice among the samples of a cell: one that stands for all, and those with other kinds of arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from conformance.numerics.compare import plain
from conformance.numerics.trees import leaves, tensors
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.calls.execution import host_call
from conformance.suites.operators.calls.facts import facts
from conformance.suites.operators.judge.cells import Cell

from . import large
from .special_values import FACTORS, is_real

#: Stands in the place of a tensor; no number that the database has. Such samples count from 7000 on.
_A_NUMBER, _NUMBERED = 0.7, 7000
#: The largest number that counts as more than another: beyond it, an integer is no size.
_MANY = 100


def representative(samples: Sequence[Call], *, plain: bool = False) -> Call:
    """Return the sample whose tensors have the most dimensions of several rows together; it has elements.

    Of several, it is the one with the most arguments; with ``plain``, the one with the fewest, which leaves the most
    defaults. If no input has several dimensions, it is the sample with the most elements, or with the largest numbers.
    """
    several = [
        sample
        for sample in samples
        if isinstance(sample.input, torch.Tensor) and sample.input.dim() > 1 and sample.input.numel() > 1
    ]
    filled = [sample for sample in several if all(tensor.numel() for tensor in sample.tensors)] or several
    if not filled:
        return max(samples, key=_size)

    def breadth(sample: Call) -> tuple[int, int, bool, int]:
        arguments = len(sample.args) + len(sample.kwargs)
        dims = sum(tensor.dim() for tensor in sample.tensors)
        # An epsilon below zero makes NaN of small spreads.
        is_usual = not any(type(leaf) is float and leaf < 0 for leaf in leaves([sample.args, sample.kwargs]))
        return sum(map(_rows, sample.tensors)), dims, is_usual, -arguments if plain else arguments

    return max(filled, key=breadth)


def _rows(tensor: torch.Tensor) -> int:
    """Return how many dimensions of a tensor have several rows: of a batch of one, nothing can be repeated."""
    return sum(size > 1 for size in tensor.shape)


def _size(sample: Call) -> tuple[int, int]:
    """Return how many elements a call has, and of one without tensors how many it asks for: ``eye(0)`` has none."""
    numbers = [leaf for leaf in leaves(list(sample.arguments)) if type(leaf) is int]
    return sample.elements, 0 if sample.tensors else sum(min(abs(number), _MANY) for number in numbers)


def of_other_sizes(cell: Cell) -> Call | None:
    """Return the representative sample, if its first tensor may have other sizes and other values.

    None where the operator does not check its arguments, where memory that grows is not defined, or where PyTorch's CPU
    is wrong for long dimensions.
    """
    known, sample = facts(cell.info.name), representative(cell.fixed)
    # What a resized tensor has beyond its old elements is not defined.
    fits = not (known.unchecked or known.resizes) and large.fits(cell.info, sample)
    return sample if fits and isinstance(sample.input, torch.Tensor) else None


def unlike(
    cell: Cell,
    samples: Sequence[Call],
    most: int | None = None,
    *,
    by_dims: bool = False,
    by_words: bool = False,
    draws: bool = False,
) -> list[Call]:
    """Return some samples with other kinds of arguments each: the largest, those without a factor 0.0 first.

    None of them draws random numbers, except with ``draws``. With ``by_dims``, and in the deep tier, an input with
    another number of dimensions is of another kind, and with ``by_words`` another word.
    """
    most, by_dims = most or cell.work.special_inputs.samples, by_dims or cell.deep
    is_moved = facts(cell.info.name).moves_factors or facts(cell.info.name).open_signs
    found: dict[tuple[Any, ...], Call] = {}
    for sample in sorted(samples, key=_by_use, reverse=True):
        fits = draws or sample.number not in cell.tally.drawn
        fits &= sample.process is None or is_moved
        if fits and all(tensor.layout is torch.strided and tensor.numel() for tensor in sample.tensors):
            dims = sample.input.dim() if by_dims and isinstance(sample.input, torch.Tensor) else 0
            words = [leaf for leaf in leaves([sample.args, sample.kwargs]) if type(leaf) is str] if by_words else ()
            found.setdefault((dims, *words, *_kinds(sample)), sample)
    chosen = list(found.values())[:most]
    known = {_kinds(sample) for sample in found.values() if sample.elements > 1}
    numbers = _with_a_number(cell.info, chosen[0], known) if chosen else None
    scalars = facts(cell.info.name).scalar
    if chosen and scalars and chosen[0].tensors[0].is_floating_point():
        tensor = torch.tensor(_A_NUMBER, dtype=chosen[0].tensors[0].dtype)
        numbers = replace(chosen[0].with_argument(scalars, tensor), number=chosen[0].number + _NUMBERED)
    return [*chosen, numbers] if numbers is not None else chosen


def of_most_dims(cell: Cell, known: Sequence[Call]) -> list[Call]:
    """Return another sample whose result has more dimensions of several rows than the known ones': a sum along one."""
    dims = {id(sample): _dims(cell, sample) for sample in (*known, *cell.fixed)}
    best = max(cell.fixed, key=lambda sample: (*dims[id(sample)], sample.elements))
    return [best] if dims[id(best)][0] > max(dims[id(sample)][0] for sample in known) else []


def _dims(cell: Cell, sample: Call) -> tuple[int, int]:
    """Return the most dimensions of several rows that a result of the host has, and less for those of one row."""
    made = host_call(cell.info.op, sample)
    results = tensors(made.value) if made.error is None else []
    return max(((_rows(tensor), _rows(tensor) - tensor.dim()) for tensor in results), default=(0, 0))


def _by_use(sample: Call) -> tuple[bool, tuple[int, int]]:
    """Return whether no number is 0.0, a factor for which nothing shows, and how many elements there are."""
    numbers = [leaf for leaf in leaves([sample.args, sample.kwargs]) if type(leaf) is float]
    return 0.0 not in numbers, _size(sample)


def _with_a_number(info: Any, sample: Call, known: set[tuple[Any, ...]]) -> Call | None:
    """Return the sample with a number in the place of its last tensor of values.

    None if there already is such a sample among the ``known`` kinds, or if the host takes no number there.

    That is another overload of most functions. The database has it for few of them, or for one element alone.
    """
    given = [(place, value) for place, value in enumerate(sample.args) if isinstance(value, torch.Tensor)]
    places = [place for place, value in given if is_real(value)]
    numbers: tuple[float, ...] = (_A_NUMBER, -_A_NUMBER)
    if not places and isinstance(sample.input, torch.Tensor) and sample.input.dtype in FACTORS:
        places, numbers = [place for place, value in given if value.dtype is sample.input.dtype], (1, 2)
    if not places:
        return None
    changed, other = (
        replace(sample.with_argument(places[-1], number), number=sample.number + _NUMBERED) for number in numbers
    )
    if _kinds(changed) in known:
        return None
    first, second = (_tensor_or_none(info, numbered) for numbered in (changed, other))
    # A number that does not count stands for something else: ``to`` takes a tensor for its dtype.
    return None if first is None or second is None or torch.equal(first, second) else changed


def _tensor_or_none(info: Any, sample: Call) -> torch.Tensor | None:
    """Return the host's result if it is one tensor."""
    made = host_call(info.op, sample).value
    return plain(made) if isinstance(made, torch.Tensor) and made.layout is torch.strided else None


def _kinds(sample: Call) -> tuple[Any, ...]:
    """Return the types of the arguments, their names and what is true: samples with others may reach other kernels."""
    arguments = [type(leaf) for leaf in leaves([sample.input, *sample.args])]
    given = (*sample.args, *sample.kwargs.values())
    return (*arguments, *sample.kwargs, *(value for value in given if type(value) is bool))
