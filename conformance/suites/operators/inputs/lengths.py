"""Lengths at their ends in one batch: a length of 0, of 1, a full one, and one between.

The database's samples of these operators have no length of 0, or no others beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from conformance.accelerators.capabilities import Mode
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.judge.cells import Cell

from .comparing import check_call
from .families import source

#: Numbers from 6000 on are no numbers of other samples.
_NUMBER = 6000
#: Labels of a long target, and steps beside as many.
_LABELS, _TO_SPARE = 1031, 70
_TIER = "lengths of 0, 1, full and between"


def samples(info: Any, dtype: torch.dtype, *, requires_grad: bool) -> list[Call]:
    """Return samples whose lengths are 0, 1, full and between; none for an operator without lengths."""
    make = _OPERATORS.get(info.name)
    return make(dtype, requires_grad) if make is not None and dtype in (torch.float32, torch.float64) else []


def _ctc(dtype: torch.dtype, requires_grad: bool) -> list[Call]:
    """Return calls of ``ctc_loss`` with sequences of unlike lengths, a target without labels among them."""
    targets = torch.tensor([[1, 2, 2, 3, 1], [4, 1, 1, 1, 1], [3, 3, 1, 2, 4], [2, 1, 1, 1, 1], [1, 4, 1, 1, 1]])
    inputs, due = torch.tensor([9, 1, 8, 9, 5]), torch.tensor([0, 1, 5, 0, 2])

    def sample(number: int, given: torch.Tensor, reduction: str) -> Call:
        values = torch.randn(9, len(inputs), 5).to(dtype).log_softmax(-1).requires_grad_(requires_grad)
        return Call(_NUMBER + number, values, (given, inputs, due), {"reduction": reduction}, source=_TIER)

    flat = torch.cat([row[:length] for row, length in zip(targets, due, strict=True)])
    found = [sample(0, targets, "none"), sample(1, flat, "none"), sample(2, targets, "mean")]
    # Two labels do not fit into one step: the loss is infinite, and zero_infinity makes it and its gradient zero.
    beyond = (targets, inputs, torch.tensor([0, 2, 5, 0, 2]))
    for number, reduction in enumerate(("none", "mean"), 3):
        given = {"reduction": reduction, "zero_infinity": True}
        found.append(replace(sample(number, targets, reduction), args=beyond, kwargs=given))
    # More labels than a block has threads, and as many steps as they need at least, with some to spare.
    labels = torch.arange(_LABELS) % 2 + 1
    long = torch.randn(_LABELS + _TO_SPARE, 1, 3).to(dtype).log_softmax(-1).requires_grad_(requires_grad)
    behind = labels.view(1, -1), torch.tensor([len(long)]), torch.tensor([_LABELS])
    found.append(Call(_NUMBER + 5, long, behind, {"reduction": "none"}, source="many labels"))
    return found


def _bags(dtype: torch.dtype, requires_grad: bool) -> list[Call]:
    """Return calls of ``embedding_bag`` with bags of unlike lengths, an empty one among them."""
    index, starts = torch.tensor([1, 3, 3, 0, 5, 2]), torch.tensor([0, 0, 1, 5, 6])
    return [
        Call(
            _NUMBER + number,
            torch.randn(6, 4).to(dtype).requires_grad_(requires_grad),
            (index,),
            {"offsets": starts, "mode": mode},
            source=_TIER,
        )
        for number, mode in enumerate(("sum", "mean", "max"))
    ]


_OPERATORS: dict[str, Callable[[torch.dtype, bool], list[Call]]] = {
    "nn.functional.ctc_loss": _ctc,
    "nn.functional.embedding_bag": _bags,
}


@source(Mode.INFERENCE, check_call, values=False)
def lengths(cell: Cell) -> list[Call]:
    """Return samples whose lengths are 0, 1, full and between, without gradients."""
    return samples(cell.info, cell.dtype, requires_grad=False)
