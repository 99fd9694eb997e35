"""Large numbers whose neighbours are one apart, in all operands at once: what a narrower float takes for equal.

A kernel that compares integers through a float, or float64 through float32, is right for the small numbers of the
database. Here each tensor of values, and each number beside them, moves up by one large number. Operators that only
compare or choose then give the same truth values and places, and the same elements moved up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from conformance.accelerators.capabilities import Mode
from conformance.numerics.compare import plain
from conformance.numerics.trees import leaves, mapped
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.calls.execution import host_call
from conformance.suites.operators.judge.cells import Cell

from .comparing import check_with_forms
from .families import source
from .kinds import unlike
from .settings import places_of_numbers, plain_leaves, with_numbers_at

#: Numbers from 9800 on are no numbers of other samples.
_NUMBER = 9800
#: The values become integers of at most this size, before they move.
_MOST = 9
#: Numbers by which values move, by dtype. A kernel in 16 bits takes neighbours of the one of float32 for equal, one in
#: float32 those of int32 and float64, one in float64 those of int64; uint8 passes the sign bit of eight bits.
_BASES: Final = {
    torch.float16: 1 << 9,
    torch.float32: 1 << 12,
    torch.float64: (1 << 24) + 64,
    torch.uint8: (1 << 7) - 4,
    torch.int16: (1 << 12) + 64,
    torch.int32: (1 << 24) + 64,
    torch.int64: (1 << 53) + 64,
}
_NEIGHBOURS = 4
#: A small number, exact in each of these dtypes, by which the law is tried.
_TRIED = 7


@source(Mode.INFERENCE, check_with_forms, dtypes=tuple(_BASES), fixed=True, checked=True)
def wide_neighbours(cell: Cell) -> Iterator[Call]:
    """Yield samples of large integers that are near to each other, for operators that compare or choose."""
    if not _compares(cell):
        return
    base = _BASES[cell.dtype]
    number = _NUMBER
    for sample in unlike(cell, cell.fixed):
        move = next((move for move in _moves(cell, sample) if _follows(cell.info, move, _TRIED)), None)
        if move is None:
            continue
        # A float rounds two of four neighbours down or up: a number beside a tensor has to be each of them.
        for moved in range(base, base + (_NEIGHBOURS if move.places else 1)):
            if _follows(cell.info, move, moved):
                yield replace(move.by(moved), number=number, source=f"neighbours of {moved}")
            number += 1


@dataclass(frozen=True)
class _Move:
    """A sample, and what moves up in it: these tensors, and the numbers in these places."""

    sample: Call
    tensors: list[torch.Tensor]
    places: list[int]

    def by(self, base: int) -> Call:
        """Return the sample with whole numbers in these tensors and places, moved up by the base."""
        given = plain_leaves(self.sample)
        numbers = {place: type(given[place])(_whole(given[place]) + base) for place in self.places}

        def change(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor) or not any(leaf is each for each in self.tensors):
                return leaf
            return leaf.detach().round().clamp(-_MOST if leaf.dtype.is_signed else 0, _MOST) + base

        found = with_numbers_at(self.sample, numbers)
        return found.with_arguments(mapped(found.arguments, change))


def _compares(cell: Cell) -> bool:
    """Return whether the operator may compare or choose: complex numbers have no order, and can be equal."""
    if torch.complex64 not in cell.info.dtypes:
        return True
    made = leaves(host_call(cell.info.op, cell.fixed[0]).value)
    return any(leaf is True or leaf is False or getattr(leaf, "dtype", None) is torch.bool for leaf in made)


def _moves(cell: Cell, sample: Call) -> Iterator[_Move]:
    """Yield what may move up in a sample: all its values with the numbers beside them, without these, one alone."""
    given = [tensor for tensor in sample.tensors if tensor.dtype is cell.dtype]
    if not given or any(tensor.layout is not torch.strided for tensor in given):
        return
    numbers = places_of_numbers(cell.info, sample)
    alone = [[place] for place in numbers] if len(numbers) > 1 else []
    for tensors in [given, given[:1]] if len(given) > 1 else [given]:
        for places in [numbers, *alone, []] if numbers else [[]]:
            yield _Move(sample, tensors, places)


def _whole(number: float) -> int:
    """Return the number as an integer, at most ``_MOST`` in size."""
    return max(-_MOST, min(_MOST, round(number)))


def _follows(info: Any, move: _Move, base: int) -> bool:
    """Return whether the host's results stay or move up, as those of a comparison or a choice do."""
    still, moved = move.by(0), move.by(base)
    before, after = host_call(info.op, still), host_call(info.op, moved)
    if not (before.comparable and after.comparable):
        return False
    results = leaves(before.value), leaves(after.value)
    if not results[0] or len(results[0]) != len(results[1]):
        return False
    return all(_is_moved(one, other, still, base) for one, other in zip(*results, strict=True))


def _is_moved(before: Any, after: Any, still: Call, base: int) -> bool:
    """Return whether a result stays as it was or moves by ``base`` when the inputs move by it."""
    if type(before) is bool:
        return type(after) is bool and before is after
    if not isinstance(before, torch.Tensor) or before.layout is not torch.strided or before.is_complex():
        return False
    if not isinstance(after, torch.Tensor) or (before.shape, before.dtype) != (after.shape, after.dtype):
        return False
    before, after = plain(before), plain(after)
    if before.dtype is not torch.bool and before.dtype not in _BASES:
        return False
    if before.is_floating_point() and not _is_of(before, still):
        return False  # a mean or a variance rounds
    return torch.equal(before, after) or torch.equal(before + base, after)


def _is_of(result: torch.Tensor, call: Call) -> bool:
    """Return whether a result consists of elements of the inputs."""
    known = [tensor.detach().reshape(-1) for tensor in call.tensors if tensor.dtype is result.dtype]
    numbers = [leaf for leaf in plain_leaves(call) if type(leaf) in (int, float)]
    return bool(torch.isin(result, torch.cat([*known, torch.tensor(numbers, dtype=result.dtype)])).all())
