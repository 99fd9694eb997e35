"""Calls on another thread and without gradients, in other layouts and forms; and calls of deterministic algorithms.

A device may keep its current stream, its workspace or its settings for each thread, and may take another kernel where
no gradient is wanted. The other families call from one thread, and with gradients. They change the settings of a call
or the layout of its inputs; a kernel that goes wrong where both are unusual is right for each of them. And a device may
have another kernel where ``torch.use_deterministic_algorithms(True)`` asks for one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from conformance.accelerators.capabilities import Mode
from conformance.suites import shared_bodies
from conformance.suites.operators.calls.calls import Around, Call
from conformance.suites.operators.calls.execution import host_call
from conformance.suites.operators.judge.cells import Cell
from conformance.suites.threads import on_a_thread

from . import arrangements, variants
from .comparing import check_call
from .families import Stage, check
from .kinds import of_most_dims, representative, unlike

#: Samples of an operator, each with other kinds of arguments: they are calls of other overloads.
_SAMPLES = 3
#: Layouts of a call with other settings.
_OF_SETTINGS = ("non-contiguous", "expanded along the first dimension")
#: What is unusual about such a call.
CHANGE = "on another thread, without gradients"
ELSEWHERE = (Around.THREAD, Around.NO_GRAD)


def do_elsewhere(work: Callable[[], None]) -> None:
    """Do some work on a thread of its own, without gradients, and raise its error here."""

    def alone() -> None:
        with torch.no_grad():
            work()

    on_a_thread(alone)


@check(Mode.INFERENCE, stage=Stage.FORMS, once=True, fixed=True)
def elsewhere(cell: Cell) -> None:
    """Compare calls on a thread of its own: to start one takes as long as a call."""

    def work() -> None:
        _check_kinds(cell)
        for sample in cell.kept("settings", list[Call]):
            variants.rearranged(cell, sample.named(change=CHANGE, around=ELSEWHERE), _OF_SETTINGS)

    do_elsewhere(work)


def _check_kinds(cell: Cell) -> None:
    """Compare samples with other kinds of arguments, and an image for functions of single elements.

    After each comes the same call with the first tensor reversed: a result that a thread keeps is wrong for it. Of
    several tensors, each one is expanded while the others have gaps.
    """
    image = variants.image_of(cell)
    # Eigenvectors, of which a function leaves what is determined, have no samples of other kinds.
    chosen = unlike(cell, cell.fixed, _SAMPLES, by_words=True) or [representative(cell.fixed)]
    for given in [*chosen, *of_most_dims(cell, chosen), *([] if image is None else [image])]:
        sample = given.named(change=CHANGE, around=ELSEWHERE)
        variants.rearranged(cell, sample, ("non-contiguous",))
        variants.check_forms(cell, sample)
        if isinstance(given.input, torch.Tensor) and given.input.layout is torch.strided and given.input.numel() > 1:
            reversed_ = given.with_tensor(given.input, given.input.detach().flip(tuple(range(given.input.dim()))))
            again = reversed_.named(change=f"{CHANGE}, reversed", around=ELSEWHERE, before=(sample,))
            for strided in arrangements.of(cell.info, again, ("non-contiguous",)):
                variants.check_arranged(cell, [strided])
                variants.forms_of(cell, strided)
        if len(given.tensors) > 1 and given is not image:
            for mixed in arrangements.mixed(cell.info, sample):
                variants.check_arranged(cell, [mixed])
                if given is chosen[0]:
                    variants.forms_of(cell, mixed)


# --- deterministic algorithms -----------------------------------------------------------------------------------------

DETERMINISTIC = "with deterministic algorithms"


@contextmanager
def deterministically(cell: Cell) -> Iterator[None]:
    """Ask for deterministic algorithms. A device may refuse calls then: torch's documentation allows that."""
    try:
        with shared_bodies.deterministic():
            yield
    except RuntimeError as error:
        if "determinis" not in str(error):
            raise
        cell.check.metric("deterministic", "refused")


@check(Mode.INFERENCE, stage=Stage.FORMS, once=True, fixed=True)
def deterministic(cell: Cell) -> None:
    """Compare one call while deterministic algorithms are asked for."""
    _check_deterministic(cell, representative(cell.fixed))


@check(Mode.INFERENCE, stage=Stage.FORMS, dtypes=(torch.float32, torch.int64), fixed=True)
def deterministic_settings(cell: Cell) -> None:
    """Compare calls with other settings while deterministic algorithms are asked for, also of integers."""
    for sample in cell.kept("settings", list[Call]):
        if sample.source == "other numbers" or "=" in sample.source:
            _check_deterministic(cell, sample)


def _check_deterministic(cell: Cell, given: Call) -> None:
    sample = given.named(change=DETERMINISTIC, around=(Around.DETERMINISTIC,))
    host_call(cell.info.op, sample)  # the host computes as usual: what is kept of a call is not computed again
    with deterministically(cell):
        check_call(cell, sample)
