"""Calls in which one operand alone is unlike the other: transposed, with its channels last, or one element of a vector.

Vectors around the edges of a tile are here, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from conformance.accelerators.capabilities import Mode
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.calls.classes import is_a
from conformance.suites.operators.calls.execution import host_call
from conformance.suites.operators.judge.cells import Cell

from . import formats, tiers
from .comparing import check_call, check_with_forms
from .families import Stage, source
from .kinds import unlike

#: Numbers from 10320 and 10340 on are no numbers of other samples.
_NUMBER, _OF_OTHERS = 10_320, 10_340


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
    """Yield calls in which an operand is one element of a tensor, without dimensions and behind others in memory."""
    if not is_a(cell.info, "BinaryUfuncInfo"):
        yield from _last_elements(cell)
        return
    whole = torch.tensor((3, 1, 2, 4, 1))
    # Of truth values, the first one is unlike the chosen one.
    vector = whole > 1 if cell.dtype is torch.bool else whole.to(cell.dtype)
    for order, (first, second) in enumerate(((vector, vector[1]), (vector[4], vector), (vector[1], vector[4]))):
        given = Call(_NUMBER + order, first, (second,), source="one element of a vector")
        if host_call(cell.info.op, given).comparable:
            yield given


def _last_elements(cell: Cell) -> Iterator[Call]:
    """Yield a sample with each tensor behind the first in turn as its last element, if the host broadcasts that.

    Of functions of single elements alone: others may read beyond a tensor that is too short.
    """
    for sample in unlike(cell, cell.fixed, 1) if _is_pointwise(cell.info) else ():
        for number, tensor in enumerate(sample.tensors):
            if (
                tensor is sample.input
                or tensor.layout is not torch.strided
                or tensor.numel() < 2
                or tensor.is_quantized
            ):
                continue
            last = tensor.detach().contiguous().flatten()[-1]
            given = sample.with_tensor(tensor, last).named(number=_OF_OTHERS + number, source="one element of a tensor")
            if host_call(cell.info.op, given).comparable:
                yield given


def _is_pointwise(info: Any) -> bool:
    """Return whether PyTorch marks the operator as one of single elements."""
    packet = getattr(torch.ops.aten, info.aten_name or info.name, None)
    overloads = packet.overloads() if packet is not None else ()
    return any(torch.Tag.pointwise in getattr(packet, name).tags for name in overloads)
