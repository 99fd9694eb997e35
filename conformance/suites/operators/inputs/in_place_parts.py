"""The in-place form of a part that begins behind an offset, in narrow dtypes: each has a kernel of its own.

The other arrangements of the in-place form are given in one dtype. A kernel of narrow elements reads and writes several
of them at once, from an address that is a multiple of more than their size.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from conformance.accelerators.capabilities import Mode
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.judge.cells import Cell

from . import variants
from .families import Stage, source
from .kinds import representative

#: Dtypes of which several elements have one word.
_NARROW = (torch.bool, torch.uint8, torch.int8, torch.float16, torch.bfloat16)


def _compare(cell: Cell, sample: Call) -> None:
    """Compare the in-place form of a call for an input that begins inside a larger memory."""
    variants.in_place_of(cell, sample, ("with a storage offset",))


@source(Mode.INFERENCE, _compare, stage=Stage.FORMS, dtypes=_NARROW, fixed=True)
def in_place_parts(cell: Cell) -> Iterator[Call]:
    """Yield one sample in the dtypes that have no other arrangement of the in-place form."""
    if not cell.is_first_dtype and cell.info.inplace_variant is not None:
        yield representative(cell.fixed)
