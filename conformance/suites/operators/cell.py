"""Entry point of an operator case: choose its samples and its check."""

from __future__ import annotations

import contextlib
import warnings

import torch

from conformance.case import Tier
from conformance.finding import Refused
from conformance.numerics.modes import without_modes

from . import database, error_inputs, inference, sampling, training
from .sampling import limits


def run(case, device: torch.device, check) -> None:
    """Check the cell that ``case`` names; the result depends on the generators' seeds alone."""
    info = database.find(case.payload)
    with quiet(), without_modes(), sampling.depth(case.tier is Tier.DEEP):
        if case.dtype is None:
            error_inputs.check_refusals(info, getattr(torch, case.requires[0].dtype), device, check)
        else:
            _run_cell(case, info, device, check)


def _run_cell(case, info, device: torch.device, check) -> None:
    # A dtype that PyTorch's CPU lacks is only probed: there is no reference to compare with.
    dtype, trains, probe = getattr(torch, case.dtype), case.mode == "training", not case.in_reference
    extent = limits().probe if probe else limits().training if trains else limits().inference
    samples = _samples(info, dtype, trains, extent, probe=probe)
    area = training if trains else inference
    area.check_cell(info, dtype, device, check, samples, probe=probe)


def _samples(info, dtype: torch.dtype, trains: bool, extent, *, probe: bool):
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
def quiet():
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
