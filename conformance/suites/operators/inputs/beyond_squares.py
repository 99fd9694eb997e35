"""Numbers of float16 whose squares and exponentials float16 does not hold, in inputs and in cotangents.

The largest number of float16 is 65,504. A kernel that squares its input in float16, or takes its exponential, has
infinities for numbers beyond 255, or 11. The database's numbers are below 9.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch

from conformance.accelerators.capabilities import Mode
from conformance.numerics.budgets import OpClass
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.calls.execution import host_call
from conformance.suites.operators.judge.cells import Cell

from .comparing import check_with_forms
from .families import source
from .kinds import representative

#: Numbers from 9660 on are no numbers of other samples.
NUMBER = 9660
#: Largest numbers of an input: the exponential of the one and the square of the other are beyond float16.
_LARGEST = (14.0, 320.0)
#: The largest number of a cotangent is above half of this.
_LARGEST_COTANGENT = 512.0


@source(Mode.INFERENCE, check_with_forms, dtypes=(torch.float16,), fixed=True)
def beyond_squares(cell: Cell) -> Iterator[Call]:
    """Yield a sample whose first tensor is scaled: its square or its exponential is beyond float16."""
    for found in scaled(cell):
        # What overflows on the host may overflow elsewhere, or not.
        if host_call(cell.info.op, found).finite:
            yield found


def scaled(cell: Cell) -> Iterator[Call]:
    """Yield a sample with its first tensor scaled up to each of the largest numbers that is larger than its own."""
    sample = representative(cell.fixed)
    first = next((each for each in sample.tensors if each.is_floating_point()), None)
    if first is None or cell.op_class is OpClass.ITERATIVE or first.layout is not torch.strided:
        return
    most = _most(first)
    for order, largest in enumerate(_LARGEST):
        if 0 < most < largest:
            numbers = (first.detach().double() * (largest / most)).to(first.dtype)
            found = sample.with_tensor(first, numbers.requires_grad_(first.requires_grad))
            yield replace(found, number=NUMBER + order, source=f"numbers up to {largest:g}")


def enlarge(cotangent: torch.Tensor) -> torch.Tensor:
    """Return the cotangent times a power of two, so that the square of its largest number is beyond float16.

    The numbers are equal in every precision.
    """
    most = _most(cotangent)
    return cotangent * 2.0 ** math.floor(math.log2(_LARGEST_COTANGENT / most)) if most else cotangent


def _most(tensor: torch.Tensor) -> float:
    """Return the largest finite magnitude in a tensor; 0 if it has none."""
    return float(tensor.detach().abs().nan_to_num(0.0, 0.0, 0.0).max()) if tensor.numel() else 0.0
