"""Inference cell of one operator: plain results, then every family of inputs."""

from __future__ import annotations

from typing import Any

import torch

from conformance.accelerators.capabilities import Mode
from conformance.checker import Checker
from conformance.finding import EnvironmentLacks

from . import execution
from .calls import Call
from .cells import Cell
from .comparing import check_samples
from .families import Stage, families
from .sampling import limits


def check_cell(
    info: Any, dtype: torch.dtype, device: torch.device, check: Checker, samples: list[Call], *, probe: bool
) -> None:
    """Compare an operator's forward results with the host's.

    A ``probe`` compares the plain results only, and raises the device's exception for the first sample.
    """
    cell = Cell.of(info, dtype, device, check, samples, limits().inference.watched)
    with cell.reporting_calls():
        if probe:
            execution.execute(info.op, cell.on(samples[0]))  # a refusal ends the probe, before anything is computed
        # The first samples run under one profile; those after it run and are compared one by one.
        first = cell.watches.span(samples)
        measured = 0 if probe else limits().oracle.samples
        failure = check_samples(cell, samples[:first], measured)
        for order, sample in enumerate(samples[first:], first):
            # Of the samples for the oracle, ``measured - order`` are left.
            failure = check_samples(cell, [sample], measured - order) or failure
        chosen = () if probe else [family for family in families(Mode.INFERENCE) if family.is_of(cell)]
        for family in chosen:
            if family.stage is not Stage.LAST:
                family.run(cell)
        _require_evidence(cell, failure)
        cell.judge.report()
        for family in chosen:
            if family.stage is Stage.LAST:
                family.run(cell)


def _require_evidence(cell: Cell, failure: Exception | None) -> None:
    """Raise if no sample was compared: the device's exception if it has one, else a lack of the environment."""
    if cell.tally.compared == 0 and not cell.only:
        raise failure or EnvironmentLacks("PyTorch's CPU cannot compute any sample, so nothing can be compared here.")
