"""Calls on another thread and without gradients, of inputs with gaps, and their forms in place and into an output.

A device may keep its current stream, its workspace or its settings for each thread, and may take another kernel where
no gradient is wanted. The other families call from one thread, and with gradients.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from conformance.accelerators.capabilities import Mode
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.judge.cells import Cell
from conformance.suites.threads import on_a_thread

from . import variants
from .families import Stage, source
from .kinds import unlike

#: Samples of an operator, each with other kinds of arguments: they are calls of other overloads.
_SAMPLES = 3


def _compare(cell: Cell, sample: Call) -> None:
    on_a_thread(lambda: _check(cell, sample))


def _check(cell: Cell, sample: Call) -> None:
    # The host's sums have one order only with one thread, and each thread has a number of its own.
    torch.set_num_threads(1)
    with torch.no_grad():
        variants.rearranged(cell, sample, ("non-contiguous",))
        variants.check_forms(cell, sample)


@source(Mode.INFERENCE, _compare, stage=Stage.FORMS, once=True, fixed=True)
def elsewhere(cell: Cell) -> Iterator[Call]:
    """Yield samples with other kinds of arguments, and an image for functions of single elements."""
    image = variants.image_of(cell)
    for sample in [*unlike(cell, cell.fixed, _SAMPLES), *([] if image is None else [image])]:
        yield sample.named(change="on another thread, without gradients")
