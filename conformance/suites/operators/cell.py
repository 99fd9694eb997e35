"""Entry point of an operator case: choose its samples and its check."""

from __future__ import annotations

import contextlib
import functools
import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from conformance.accelerators.capabilities import Mode
from conformance.judging.checker import Checker
from conformance.judging.finding import EnvironmentLacks, Refused
from conformance.numerics.modes import without_modes
from conformance.numerics.trees import mapped
from conformance.plan.case import Case, Tier
from conformance.reports.calls import CALL, LONGEST_SCRIPT, SCRIPT

from .calls import database, execution, sampling
from .calls.calls import Call
from .calls.passes import PLAIN
from .calls.work import Extent, work
from .checks import certain_draws, error_inputs, training
from .inputs.comparing import check_samples
from .inputs.families import Stage, families
from .inputs.settings import plain_leaves
from .judge.cells import Cell, Failure
from .judge.script import script

#: Real and complex dtypes in which a result is asked for in place of one that is not declared, the widest first.
_NARROWER = ((torch.float32, torch.bfloat16, torch.float16), (torch.complex64,))
#: Scripts that one process keeps for the report. ``conformance explain --script`` writes the others.
_MOST_SCRIPTS = 200
_SCRIPTS = itertools.count()


def run(case: Case, device: torch.device, check: Checker, package: str = "") -> None:
    """Check the cell that ``case`` names; the result depends on the generators' seeds alone.

    The call that fails is kept as a metric, with its script, which imports the ``package`` of the device.
    """
    with reporting(case, device, check, package):
        _run(case, device, check)


@contextlib.contextmanager
def reporting(case: Case, device: torch.device, check: Checker, package: str) -> Iterator[None]:
    """Report the call that fails, if one does, with a script that repeats it if that is short."""
    try:
        yield
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
    """Run a case: the refusals of an operator, if it has no dtype, or one cell of the matrix."""
    info = database.find(case.payload)
    with quiet(), without_modes():
        if case.dtype is None:
            error_inputs.check_refusals(info, getattr(torch, str(case.requires[0].dtype)), device, check)
        else:
            _run_cell(case, info, device, check)
        if check.calls and check.failed is None:
            raise EnvironmentLacks(f"no call of this case is {check.calls}: the report names the calls that failed.")


def _run_cell(case: Case, info: Any, device: torch.device, check: Checker) -> None:
    """Compare the samples of a cell, then the calls of its families; raise the first failure."""
    # A dtype that PyTorch's CPU lacks is only probed: there is no reference to compare with.
    dtype, trains, probe = getattr(torch, str(case.dtype)), case.mode == "training", not case.in_reference
    deep = case.tier is Tier.DEEP
    usual = work(deep).training if trains else work(deep).inference
    samples = _declared(_samples(info, dtype, trains, work(deep).probe if probe else usual, probe=probe), dtype, check)
    if not (trains or probe):
        samples += certain_draws.samples(info, dtype)
    cell = Cell.of(info, dtype, device, check, samples, watched=usual.watched, deep=deep)
    with cell.reporting_calls():
        first = _check_training if trains else _check_inference
        failure = first(cell, probe=probe)
        mode = Mode.TRAINING if trains else Mode.INFERENCE
        chosen = () if probe else [family for family in families(mode) if family.is_of(cell)]
        for family in chosen:
            if family.stage is not Stage.LAST:
                family.run(cell)
        if cell.tally.compared == 0 and not cell.only:
            # The device's exception, if it has one; else the environment lacks a reference.
            raise failure or EnvironmentLacks("PyTorch's CPU can compute no sample, so nothing can be compared here.")
        cell.judge.report()
        for family in chosen:
            if family.stage is Stage.LAST:
                family.run(cell)


def _check_inference(cell: Cell, *, probe: bool) -> Exception | None:
    """Compare the plain results. A ``probe`` raises the device's exception for the first sample."""
    samples = cell.samples
    if probe:
        execution.execute(cell.info.op, cell.on(samples[0]))  # a refusal ends the probe, before anything is computed
    # The first samples run under one profile; those after it run and are compared one by one.
    first = cell.watches.span(samples)
    measured = 0 if probe else cell.work.inference.measured
    failure = check_samples(cell, samples[:first], measured)
    for order, sample in enumerate(samples[first:], first):
        # Of the samples for the oracle, ``measured - order`` are left.
        failure = check_samples(cell, [sample], measured - order) or failure
    return failure


def _check_training(cell: Cell, *, probe: bool) -> Exception | None:
    """Compare forward and backward. A ``probe`` raises the device's exception for the first sample."""
    if probe:
        PLAIN.run(cell.info, execution.execute, execution.gradients, cell.on(cell.samples[0]), seed=0)
    failure = None
    measured = 0 if probe else cell.work.training.measured
    for order, sample in enumerate(cell.samples):
        failure = training.check_sample(cell, sample, with_oracle=order < measured) or failure
    return failure


def _samples(info: Any, dtype: torch.dtype, trains: bool, extent: Extent, *, probe: bool) -> list[Call]:
    """Return the samples of the database. Raises Refused if it has none for this dtype."""
    try:
        samples = sampling.pick(info, dtype, requires_grad=trains, extent=extent)
    except Exception as error:
        if probe:
            raise Refused(f"the database has no samples for {dtype} ({type(error).__name__})") from error
        raise
    if not samples:
        raise Refused(f"the database has no samples for {dtype}")
    return samples


def _declared(samples: list[Call], dtype: torch.dtype, check: Checker) -> list[Call]:
    """Return the samples; where one asks for a result in a dtype that the device does not declare, in one that it does.

    A cell whose own dtype is not declared is probed with what the database has.
    """

    def asked(leaf: Any) -> Any:
        if not isinstance(leaf, torch.dtype) or check.declares(leaf):
            return leaf
        # Computing in integers and bool has no claim: they are indices and masks too.
        narrower = _NARROWER[leaf.is_complex] if leaf.is_floating_point or leaf.is_complex else ()
        return next((other for other in narrower if check.declares(other)), leaf)

    def in_declared(sample: Call) -> Call:
        changes = any(asked(leaf) is not leaf for leaf in plain_leaves(sample))
        return sample.with_arguments(mapped(sample.arguments, asked)) if changes else sample

    return [in_declared(sample) for sample in samples] if check.declares(dtype) else samples


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
