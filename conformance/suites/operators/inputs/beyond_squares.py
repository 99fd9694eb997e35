"""Numbers of float16 whose squares and exponentials float16 does not hold, in inputs and in cotangents.

The largest number of float16 is 65,504. A kernel that squares its input in float16, or takes its exponential, has
infinities for numbers beyond 255, or 11. The database's numbers are below 9.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from conformance.accelerators.capabilities import Mode
from conformance.numerics.budgets import OpClass
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.calls.execution import host_call
from conformance.suites.operators.judge.cells import Cell

from .comparing import check_call
from .families import source
from .kinds import of_other_sizes

#: Numbers from 9660 on are no numbers of other samples.
_NUMBER = 9660
#: Largest numbers of an input: the exponential of the one and the square of the other are beyond float16.
_LARGEST = (14.0, 320.0)


@source(Mode.INFERENCE, check_call, dtypes=(torch.float16,), fixed=True)
def beyond_squares(cell: Cell) -> Iterator[Call]:
    """Yield a sample whose first tensor is scaled: its square or its exponential is beyond float16."""
    sample = of_other_sizes(cell)
    if sample is None or cell.op_class is OpClass.ITERATIVE or not sample.input.is_floating_point():
        return
    for order, largest in enumerate(_LARGEST):
        if (found := _scaled(cell, sample, largest)) is not None:
            yield replace(found, number=_NUMBER + order, source=f"numbers up to {largest:g}")


def _scaled(cell: Cell, sample: Call, largest: float) -> Call | None:
    """Return the sample with its first tensor scaled up to ``largest``; None where the host's result is not finite."""
    given = sample.input.detach()
    most = float(given.abs().nan_to_num(0.0, 0.0, 0.0).max()) if given.numel() else 0.0
    if not most or most >= largest:
        return None
    scaled = (given.double() * (largest / most)).to(given.dtype)
    found = sample.with_tensor(sample.input, scaled)
    # What overflows on the host may overflow elsewhere, or not.
    return found if host_call(cell.info.op, found).finite else None
