"""Reductions over each kind of dimensions, of five of them, for values of one sign, and of vectors of many lengths.

The database's tensors have at most three dimensions and values of both signs. A kernel that keeps the padding of a
tile, begins with a number of its own, or reduces a fixed number of dimensions is right for these.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, Final

import torch

from conformance.accelerators.capabilities import Mode
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.calls.classes import is_a
from conformance.suites.operators.calls.execution import host_call
from conformance.suites.operators.judge.cells import Cell

from .comparing import check_call
from .families import source

#: Numbers from 9680, 9945, 9975 and 10300 on are no numbers of other samples.
_NUMBER, _OF_ONE, _VECTOR, _OF_NONE, _OF_ALIKE = 9680, 9975, 9945, 10_300, 10_310
_SHAPE = (2, 3, 1, 2, 5)
#: Which of six dimensions are reduced: all but one, and every second one.
_OF_SIX = ((0, 1, 3, 4, 5), (0, 2, 4), (1, 3, 5))
#: Fewer dimensions, each of which may have a kernel of its own.
_FEWER = (2, 3, 4)
#: Reductions along one dimension, and of all elements, that the database does not count among its reductions.
_ALONG_ONE = frozenset(("max.reduction_with_dim", "min.reduction_with_dim", "logsumexp", "aminmax"))
_OF_ALL = frozenset(("max.reduction_no_dim", "min.reduction_no_dim"))
#: Lengths of vectors behind the ends of a warp and of blocks, and between them.
_LENGTHS: Final = (33, 65, 100, 129, 200, 257, 400, 513)
#: Lengths behind what one pass of a kernel reduces: the rest of a second pass is short, and longer than two passes.
_OF_PASSES: Final = (8209, 20011)
#: The only one without ``keepdim``.
_WITHOUT_KEEPDIM = "count_nonzero"


#: Shapes, and the dimension of one element that is reduced.
_ONE_ELEMENT: Final = (((1, 7), 0), ((7, 1), 1), ((2, 1, 3), 1), ((1, 7, 1, 1, 1), -3), ((1, 1, 7, 1), -4))


@source(Mode.INFERENCE, check_call, fixed=True)
def reductions(cell: Cell) -> Iterator[Call]:
    """Yield calls along the last dimension, one in the middle, several, and all by their numbers."""
    reduces = is_a(cell.info, "ReductionOpInfo")
    if not reduces and cell.info.full_name not in _ALONG_ONE:
        return
    several: list[Any] = [(0, -1), tuple(range(len(_SHAPE)))] if getattr(cell.info, "supports_multiple_dims", 0) else []
    kept = {} if cell.info.name == _WITHOUT_KEEPDIM else {"keepdim": True}
    ways = [(dim, negative) for dim in (-1, 1, *several) for negative in (False, True)]
    for order, (dim, negative) in enumerate(ways):
        kwargs = kept if negative else {}
        given = _values(cell.dtype, negative=negative)
        yield Call(_NUMBER + order, given, (), {"dim": dim, **kwargs}, source="values of one sign in five dimensions")
    fewer = itertools.product((-1, 1), _FEWER) if cell.dtype is torch.float32 else ()
    for order, (dim, dims) in enumerate(fewer, len(ways)):
        given = _values(cell.dtype, negative=True)[(0,) * (len(_SHAPE) - dims)]
        said = f"values of one sign in {dims} dimensions"
        yield Call(_NUMBER + order, given, (), {"dim": min(dim, dims - 1), **kept}, source=said)
    for order, (shape, dim) in enumerate(_ONE_ELEMENT):
        given = _values(cell.dtype, negative=True).flatten()[: math.prod(shape)].view(shape)
        yield Call(_OF_ONE + order, given, (), {"dim": dim}, source="one element along the dimension")


@source(Mode.INFERENCE, check_call, once=True, fixed=True)
def several_dimensions(cell: Cell) -> Iterator[Call]:
    """Yield calls along several of six dimensions, and along none by name, which reduces all, with and without them."""
    if not (is_a(cell.info, "ReductionOpInfo") and getattr(cell.info, "supports_multiple_dims", False)):
        return
    given = _values(cell.dtype, negative=True)
    six = torch.stack((_values(cell.dtype, negative=False), given))
    ways: list[tuple[torch.Tensor, dict[str, Any]]] = [(six, {"dim": dims}) for dims in _OF_SIX]
    if cell.info.name != _WITHOUT_KEEPDIM:
        ways += [(given, {"dim": None, "keepdim": kept}) for kept in (False, True)]
    for order, (values, named) in enumerate(ways):
        call = Call(_OF_NONE + order, values, (), named, source="several of six dimensions, or none by name")
        if host_call(cell.info.op, call).comparable:
            yield call


@source(Mode.INFERENCE, check_call, dtypes=(torch.float32, torch.int64), fixed=True)
def vectors(cell: Cell) -> Iterator[Call]:
    """Yield vectors of some lengths that are reduced as a whole: what is left behind a block has code of its own."""
    along_one = cell.info.full_name in _ALONG_ONE
    if not (along_one or cell.info.full_name in _OF_ALL or is_a(cell.info, "ReductionOpInfo")):
        return
    alike = (-0.0, -torch.inf) if cell.dtype.is_floating_point else ()
    made = [
        *((_VECTOR + order, _vector(length, cell.dtype), "") for order, length in enumerate((*_LENGTHS, *_OF_PASSES))),
        # A largest number begins with the lowest one, and zeros are above it.
        *(
            (_OF_ALIKE + order, torch.full((_OF_PASSES[0],), value, dtype=cell.dtype), f" of {value} alone")
            for order, value in enumerate(alike)
        ),
    ]
    for number, values, kind in made:
        given = Call(number, values, (), {"dim": 0} if along_one else {}, source=f"one vector{kind}")
        if host_call(cell.info.op, given).comparable:
            yield given


def _vector(length: int, dtype: torch.dtype) -> torch.Tensor:
    """Return numbers whose sums and products are numbers of float32, with the largest one once; or small integers."""
    steps = torch.arange(length) * 29 % length
    spread = steps / 1024 if length in _LENGTHS else (steps / length - 0.5) / 8
    return (1 + spread if dtype.is_floating_point else steps % 3 + 1).to(dtype)


def _values(dtype: torch.dtype, *, negative: bool) -> torch.Tensor:
    """Return numbers between 0 and 1 in no order, or if ``negative`` below -1; for other dtypes small integers."""
    count = math.prod(_SHAPE)
    steps = torch.arange(count) * 29 % count
    if dtype is torch.bool:
        return (steps % 7 > int(negative)).view(_SHAPE)
    if not dtype.is_floating_point and not dtype.is_complex:
        signed = dtype.is_signed and negative
        return ((steps % 3 + 1) * (-1 if signed else 1)).to(dtype).view(_SHAPE)
    found = (steps + 1) / (count + 2)
    return (-1 - found if negative else found).to(dtype).view(_SHAPE)
