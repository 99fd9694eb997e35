"""Entry point of an operator case: choose its samples and its check."""

from __future__ import annotations

import contextlib
import functools
import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from conformance.case import Case, Tier
from conformance.checker import Checker
from conformance.finding import EnvironmentLacks, Refused
from conformance.numerics.modes import without_modes
from conformance.reports.calls import CALL, LONGEST_SCRIPT, SCRIPT

from . import database, error_inputs, inference, sampling, training
from .calls import Call
from .cells import Failure
from .sampling import limits
from .script import script

#: Scripts that one process keeps for the report. ``conformance explain --script`` writes the others.
_MOST_SCRIPTS = 200
_SCRIPTS = itertools.count()


def run(case: Case, device: torch.device, check: Checker, package: str = "") -> None:
    """Check the cell that ``case`` names; the result depends on the generators' seeds alone.

    The call that fails is kept as a metric, with a script that repeats it if that is short. The script imports the
    ``package`` of the device.
    """
    try:
        _run(case, device, check)
    except Exception as error:
        if check.failed is not None:
            about = f"{case.id}{check.failed.call.key} on {device.type}: {error}"
            check.on_failure = functools.partial(_failed, check.failed, about, device.type, package)
        raise


def _failed(failure: Failure, about: str, device: str, package: str) -> dict[str, str]:
    """Return the selector of a failed call, and its script if that is short."""
    facts = {CALL: failure.call.key}
    if next(_SCRIPTS) < _MOST_SCRIPTS:
        # The failure itself counts, also where its call has no script.
        with quiet(), without_modes(), contextlib.suppress(Exception):
            text = script(failure, about, device=device, package=package)
            if len(text) <= LONGEST_SCRIPT:
                facts[SCRIPT] = text
    return facts


def _run(case: Case, device: torch.device, check: Checker) -> None:
    info = database.find(case.payload)
    with quiet(), without_modes(), sampling.depth(case.tier is Tier.DEEP):
        if case.dtype is None:
            error_inputs.check_refusals(info, getattr(torch, case.requires[0].dtype), device, check)
        else:
            _run_cell(case, info, device, check)
        if check.calls and check.failed is None:
            raise EnvironmentLacks(f"no call of this case is {check.calls}: the report names the calls that failed.")


def _run_cell(case: Case, info: Any, device: torch.device, check: Checker) -> None:
    # A dtype that PyTorch's CPU lacks is only probed: there is no reference to compare with.
    dtype, trains, probe = getattr(torch, case.dtype), case.mode == "training", not case.in_reference
    extent = limits().probe if probe else limits().training if trains else limits().inference
    samples = _samples(info, dtype, trains, extent, probe=probe)
    area = training if trains else inference
    area.check_cell(info, dtype, device, check, samples, probe=probe)


def _samples(info: Any, dtype: torch.dtype, trains: bool, extent: Any, *, probe: bool) -> list[Call]:
    try:
        samples = sampling.pick(info, dtype, requires_grad=trains, extent=extent)
    except Exception as error:
        if probe:
            raise Refused(f"the database has no samples for {dtype} ({type(error).__name__})") from error
        raise
    if not samples:
        raise Refused(f"the database has no samples for {dtype}")
    return samples


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Run with one thread and without warnings.

    With one thread, the host's sums have one order. The database's warnings do not concern the device.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_num_threads(threads)
