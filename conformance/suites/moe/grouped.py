"""What cases of grouped products share."""

from __future__ import annotations

import torch

from conformance.accelerators.capabilities import Cell, Mode


def grouped_cell(dtype):
    """PyTorch's function of that name, with its gradients."""
    return Cell("operators.nn.functional.grouped_mm", dtype, Mode.TRAINING.value)


def ends_of(experts, count):
    """Where each expert's rows end once they are sorted by expert, as grouped products take it."""
    return torch.bincount(experts, minlength=count).cumsum(0).to(torch.int32)
