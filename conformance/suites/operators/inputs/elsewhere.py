"""Calls on another thread and without gradients: layouts of several inputs beside other settings, and other forms.

A device may keep its current stream, its workspace or its settings for each thread, and may take another kernel where
no gradient is wanted. The other families call from one thread, and with gradients. They change the settings of a call
or the layout of its inputs; a kernel that goes wrong where both are unusual is right for each of them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from conformance.accelerators.capabilities import Mode
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.judge.cells import Cell
from conformance.suites.threads import on_a_thread

from . import arrangements, variants
from .families import Stage, check
from .kinds import unlike

#: Samples of an operator, each with other kinds of arguments: they are calls of other overloads.
_SAMPLES = 3
#: Layouts of a call with other settings.
_OF_SETTINGS = ("non-contiguous", "expanded along the first dimension")
#: What is unusual about such a call.
CHANGE = "on another thread, without gradients"


def do_elsewhere(work: Callable[[], None]) -> None:
    """Do some work on a thread of its own, without gradients, and raise its error here."""

    def alone() -> None:
        # The host's sums have one order only with one thread, and each thread has a number of its own.
        torch.set_num_threads(1)
        with torch.no_grad():
            work()

    on_a_thread(alone)


@check(Mode.INFERENCE, stage=Stage.FORMS, once=True, fixed=True)
def elsewhere(cell: Cell) -> None:
    """Compare calls on a thread of its own: to start one takes as long as a call."""

    def work() -> None:
        _check_kinds(cell)
        for sample in cell.kept("settings", list[Call]):
            variants.rearranged(cell, sample.named(change=CHANGE), _OF_SETTINGS)

    do_elsewhere(work)


def _check_kinds(cell: Cell) -> None:
    """Compare samples with other kinds of arguments, and an image for functions of single elements.

    After each comes the same call with the first tensor reversed: a result that a thread keeps is wrong for it. Of
    several tensors, each one is expanded while the others have gaps.
    """
    image = variants.image_of(cell)
    for given in [*unlike(cell, cell.fixed, _SAMPLES), *([] if image is None else [image])]:
        sample = given.named(change=CHANGE)
        variants.rearranged(cell, sample, ("non-contiguous",))
        variants.check_forms(cell, sample)
        if isinstance(given.input, torch.Tensor) and given.input.layout is torch.strided and given.input.numel() > 1:
            reversed_ = given.with_tensor(given.input, given.input.detach().flip(tuple(range(given.input.dim()))))
            variants.rearranged(cell, reversed_.named(change=f"{CHANGE}, reversed"), ("non-contiguous",))
        if len(given.tensors) > 1 and given is not image:
            variants.check_arranged(cell, arrangements.mixed(cell.info, sample))
