"""Comparison of single calls with the host's: the loop that most families of inputs share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from conformance.judging.finding import EnvironmentLacks
from conformance.suites.operators.calls import execution
from conformance.suites.operators.calls.calls import HOST, Call
from conformance.suites.operators.calls.execution import attempt, call, host_call, settled
from conformance.suites.operators.judge import oracle
from conformance.suites.operators.judge.cells import Cell

from . import randomness, variants


def check_call(cell: Cell, sample: Call) -> None:
    """Compare one call with the host's."""
    check_samples(cell, [sample])


def check_with_forms(cell: Cell, sample: Call) -> None:
    """Compare one call with the host's, and its forms ``out=`` and in place."""
    check_samples(cell, [sample])
    if cell.values and sample.number not in cell.tally.drawn:
        variants.check_forms(cell, sample)


def check_supported(
    cell: Cell,
    sample: Call,
    area: str,
    said: str,
    exact: oracle.Oracle | None = None,
    is_sound: Callable[[Any], bool] | None = None,
) -> Any:
    """Compare a call that the host computes; what is ``said`` of a device that refuses it is a note of an ``area``.

    ``exact`` is another oracle than that of the operator. ``is_sound`` takes the host's result, and says whether every
    device has to give it. Return that result; None if the host refuses, or no device has to give it.
    """
    expected = attempt(call, cell.info, sample.on(HOST))
    if expected.error is not None or (is_sound is not None and not is_sound(expected.value)):
        return None
    found = settled(attempt(execution.execute, cell.info, cell.on(sample)))
    if found.error is not None:
        cell.check.metric(area, said)
        return expected.value
    n = cell.judge.length(sample, expected.value)
    cell.judge.result(sample, found.value, expected.value, exact or oracle.of_forward(cell.info, sample), n)
    return expected.value


@dataclass
class SampleRun:
    """One sample with the results of the host and of the device.

    The device does not run a sample that the host refuses, or for which the host draws random numbers.
    """

    sample: Call
    host: Call
    device: Call
    expected: Any = None
    refusal: Exception | None = None
    draws: bool = False
    answer: Any = None
    error: Exception | None = None


def check_samples(cell: Cell, samples: list[Call], measured: int = 0) -> Exception | None:
    """Compare samples, the first ``measured`` with the oracle too.

    All device calls run before the first comparison, so that one profile spans them. Return the exception for the
    last sample that the host refused, else None.
    """
    runs = [_run_on_host(cell, sample) for sample in samples]
    _run_on_device(cell, runs)
    failure = None
    for order, run in enumerate(runs):
        failure = _compare(cell, run, with_oracle=order < measured) or failure
    return failure


def _run_on_host(cell: Cell, sample: Call) -> SampleRun:
    """Run a sample on the host, and return its result with the call for the device."""
    made = host_call(cell.info.op, sample)
    # A call that moves the host's generator draws random numbers; its values cannot be compared one by one.
    draws = made.error is None and cell.values and made.draws
    return SampleRun(sample, made.given, cell.on(sample), made.value, made.error, draws)


def _run_on_device(cell: Cell, runs: list[SampleRun]) -> None:
    """Run the samples on the device up to the first exception, which ``_compare`` raises in its turn."""
    with cell.watches.together():
        for run in runs:
            if run.refusal is not None or run.draws:
                continue
            try:
                run.answer = cell.watches.execute(cell.info.op, run.device)
            except Exception as error:  # the samples before it are compared first
                run.error = error
                return


def _compare(cell: Cell, run: SampleRun, *, with_oracle: bool) -> Exception | None:
    """Compare the runs of a sample; return why they cannot be compared, or None. Raises the device's error."""
    if cell.selects(run.sample):
        cell.note(run.device)
    if run.refusal is not None:
        return _device_refusal(cell, run.device) or _no_reference(run.refusal)
    if run.draws:
        cell.judge.drew()
        randomness.check(cell, run.sample, run.expected)
        return None
    if run.error is not None:
        raise run.error
    pairs = (run.answer, run.device), (run.expected, run.host)
    cell.judge.outcome(run.sample, *pairs, oracle.of_forward(cell.info, run.sample), with_oracle=with_oracle)
    return None


def _device_refusal(cell: Cell, device: Call) -> Exception | None:
    """Return the exception with which the device refuses the call, or None if it accepts it."""
    try:
        execution.execute(cell.info.op, device)
    except Exception as refusal:  # the caller raises it unless another sample can be compared
        return refusal
    return None


def _no_reference(refusal: Exception) -> Exception:
    """Return the exception for a cell whose reference the host refuses to compute."""
    return EnvironmentLacks(f"PyTorch's CPU has no reference for this cell ({type(refusal).__name__}).")
