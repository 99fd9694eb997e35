"""Calls in which one operand alone is unlike the other: transposed, with its channels last, or one element of a vector.

Vectors around the edges of a tile are here, too.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from conformance.accelerators.capabilities import Mode
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.calls.classes import is_a
from conformance.suites.operators.calls.execution import host_call
from conformance.suites.operators.judge.cells import Cell

from . import formats, tiers
from .comparing import check_call, check_with_forms
from .families import Stage, source

#: Numbers from 10320 on are no numbers of other samples.
_NUMBER = 10_320


@source(Mode.INFERENCE, check_call, values=False)
def edge_sizes(cell: Cell) -> list[Call]:
    """Return vectors whose sizes lie around the edges of a tile."""
    return tiers.edge_sizes(cell.info, cell.dtype, cell.work.edges.sizes)


@source(Mode.INFERENCE, check_with_forms, stage=Stage.FORMS, once=True, values=False)
def unlike_operands(cell: Cell) -> Iterator[Call]:
    """Yield matrices of which one is transposed, and lists of images of which one has its channels last."""
    yield from tiers.ragged_matrices(cell.info, cell.dtype)
    yield from formats.mixed(cell)


@source(Mode.INFERENCE, check_call, values=False)
def elements(cell: Cell) -> Iterator[Call]:
    """Yield vectors beside one element of another vector, which has no dimensions and lies behind others in memory."""
    if not is_a(cell.info, "BinaryUfuncInfo"):
        return
    whole = torch.tensor((3, 1, 2, 4, 1))
    # Of truth values, the first one is unlike the chosen one.
    vector = whole > 1 if cell.dtype is torch.bool else whole.to(cell.dtype)
    for order, (first, second) in enumerate(((vector, vector[1]), (vector[4], vector), (vector[1], vector[4]))):
        given = Call(_NUMBER + order, first, (second,), source="one element of a vector")
        if host_call(cell.info.op, given).comparable:
            yield given
