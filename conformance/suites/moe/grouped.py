"""Requirements and offsets of grouped products, shared by the cases that use them."""

from __future__ import annotations

import torch

from conformance.accelerators.capabilities import Cell, Mode


def grouped_cell(dtype):
    """Return the capability cell of torch.nn.functional.grouped_mm with gradients, in that dtype."""
    return Cell("operators.nn.functional.grouped_mm", dtype, Mode.TRAINING.value)


def ends_of(experts, count):
    """Return the row at which each expert's rows end, (count) int32, once rows are sorted by expert.

    It is the ``offs`` argument of grouped_mm.
    """
    return torch.bincount(experts, minlength=count).cumsum(0).to(torch.int32)
