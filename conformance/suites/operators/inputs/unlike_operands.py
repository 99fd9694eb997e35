"""Calls in which one operand alone is transposed, or has its channels last, and vectors around the edges of a tile."""

from __future__ import annotations

from collections.abc import Iterator

from conformance.accelerators.capabilities import Mode
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.judge.cells import Cell

from . import formats, tiers
from .comparing import check_call, check_with_forms
from .families import Stage, source


@source(Mode.INFERENCE, check_call, values=False)
def edge_sizes(cell: Cell) -> list[Call]:
    """Return vectors whose sizes lie around the edges of a tile."""
    return tiers.edge_sizes(cell.info, cell.dtype, cell.work.edges.sizes)


@source(Mode.INFERENCE, check_with_forms, stage=Stage.FORMS, once=True, values=False)
def unlike_operands(cell: Cell) -> Iterator[Call]:
    """Yield matrices of which one is transposed, and lists of images of which one has its channels last."""
    yield from tiers.ragged_matrices(cell.info, cell.dtype)
    yield from formats.mixed(cell)
