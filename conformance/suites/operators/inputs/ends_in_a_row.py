"""Rows with several infinities behind each other, in a matrix: what a scan or a reduction in parts meets at its seams.

The special values of the other families stand alone. A sum of exponentials over a part that has nothing but −inf has no
largest element, and a kernel that subtracts it makes NaN.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch

from conformance.accelerators.capabilities import Mode
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.judge.cells import Cell

from .comparing import check_call
from .families import source

#: Numbers from 9590 on are no numbers of other samples.
_NUMBER = 9590
_LOW = -float("inf")
#: Operators of a tensor and a dimension whose result PyTorch defines for such rows.
_OPERATORS: Final = frozenset({"logcumsumexp", "logsumexp", "softmax", "log_softmax", "amax", "amin"})
#: Operators that add up or multiply, whose infinities stay where no other sign and no zero meets them.
_SUMS: Final = frozenset({"cumsum", "cumprod", "sum", "prod", "mean"})
#: Operators that give places: PyTorch documents that of equal numbers, the place is that of the first one.
_PLACES: Final = frozenset({"argmax", "argmin"})
#: Numbers of a row in which −inf repeats: a warp, and more than one.
_LENGTHS: Final = (7, 33, 257)


@source(Mode.INFERENCE, check_call, dtypes=(torch.float32, torch.float16, torch.bfloat16), fixed=True)
def ends_in_a_row(cell: Cell) -> Iterator[Call]:
    """Yield matrices whose rows have −inf at the start, in the middle, in all places but one, and nowhere.

    For what gives places, two rows have one infinity in all places: a kernel may begin with a place out of range.
    """
    name = cell.info.full_name
    for order, length in enumerate(_LENGTHS if name in _OPERATORS | _PLACES | _SUMS else ()):
        rows = (torch.arange(4 * length) % 5 - 2).to(cell.dtype).view(4, length)
        if name in _SUMS:
            rows[rows == 0] = 1
        rows[0, :-2] = rows[1, 1:-1] = rows[2, : length // 2] = _LOW
        if name in _PLACES:
            rows[2], rows[3] = _LOW, -_LOW
        yield Call(_NUMBER + order, rows, (-1,), source="infinities behind each other")
