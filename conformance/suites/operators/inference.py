"""The forward cell of one operator: plain results, layouts, out= and in-place variants, special values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from conformance.finding import EnvironmentLacks

from . import execution, oracle, randomness, tiers, variants
from .classes import is_uninitialised, op_class
from .execution import Sample, call
from .judging import Judge
from .settings import limits


def check_cell(info, dtype: torch.dtype, device: torch.device, check, samples: list[Sample], *, probe: bool) -> None:
    judge = Judge(check, device, op_class(info), values=not is_uninitialised(info), watched=limits().inference.watched)
    if probe:
        execution.execute(info.op, samples[0].on(device))  # a refusal ends the probe here, before anything is computed
    first = judge.watches.span(samples)
    measured = 0 if probe else limits().oracle.samples
    failure = check_samples(info, judge, samples[:first], measured)
    for order, sample in enumerate(samples[first:], first):
        failure = check_samples(info, judge, [sample], measured - order) or failure
    if not probe:
        for sample in tiers.edge_sizes(info, dtype):
            check_samples(info, judge, [sample])
        check_specials(info, judge, dtype)
        variants.check(info, judge, samples)
    _require_evidence(judge, failure)
    judge.report()


def _require_evidence(judge: Judge, failure: Exception | None) -> None:
    """All samples raised, on the device and on the host alike: say what the device said."""
    if judge.samples == 0:
        raise failure or EnvironmentLacks("PyTorch's CPU cannot compute any sample, so nothing can be compared here.")


@dataclass
class Asked:
    """One sample, and how the two sides answered. The device is not asked what the host refuses or draws."""

    sample: Sample
    host: Sample
    device: Sample
    expected: Any = None
    refusal: Exception | None = None
    draws: bool = False
    answer: Any = None
    error: Exception | None = None


def check_samples(info, judge: Judge, samples: list[Sample], measured: int = 0) -> Exception | None:
    """Compare samples, the first ``measured`` with the oracle too, so that one profile sees all calls of the device.

    Returns the device's exception when the host refuses the last sample as well.
    """
    asked = [_ask_host(info, judge, sample) for sample in samples]
    _ask_device(info, judge, asked)
    failure = None
    for order, one in enumerate(asked):
        failure = _compare(info, judge, one, with_oracle=order < measured) or failure
    return failure


def _ask_host(info, judge: Judge, sample: Sample) -> Asked:
    one = Asked(sample, sample.on(torch.device("cpu")), sample.on(judge.device))
    state = torch.get_rng_state()
    try:
        one.expected = call(info.op, one.host)
    except Exception as refusal:  # the reference has no answer: then the device owes none either
        one.refusal = refusal
        return one
    one.draws = judge.values and not torch.equal(state, torch.get_rng_state())
    return one


def _ask_device(info, judge: Judge, asked: list[Asked]) -> None:
    """Stops at the first exception, which is raised when its turn comes."""
    with judge.watches.together():
        for one in asked:
            if one.refusal is not None or one.draws:
                continue
            try:
                one.answer = judge.watches.execute(info.op, one.device)
            except Exception as error:  # the samples before it are judged first
                one.error = error
                return


def _compare(info, judge: Judge, one: Asked, *, with_oracle: bool) -> Exception | None:
    if one.refusal is not None:
        return _device_refusal(info, one.device) or _no_reference(one.refusal)
    if one.draws:
        judge.drew()
        randomness.check(info, judge, one.sample, one.expected)
        return None
    if one.error is not None:
        raise one.error
    pairs = (one.answer, one.device), (one.expected, one.host)
    judge.outcome(one.sample, *pairs, oracle.of_forward(info, one.sample), with_oracle=with_oracle)
    return None


def _device_refusal(info, device: Sample) -> Exception | None:
    try:
        execution.execute(info.op, device)
    except Exception as refusal:  # handed to the caller, who raises it unless another sample can be judged
        return refusal
    return None


def _no_reference(refusal: Exception) -> Exception:
    return EnvironmentLacks(f"PyTorch's CPU has no reference for this cell ({type(refusal).__name__}).")


def check_specials(info, judge: Judge, dtype: torch.dtype) -> None:
    for sample in tiers.special_values(info, dtype):
        host, device = sample.on(torch.device("cpu")), sample.on(judge.device)
        state = torch.get_rng_state()
        expected = call(info.op, host)
        if not torch.equal(state, torch.get_rng_state()):
            return
        actual = execution.execute(info.op, device)
        exact = oracle.of_forward(info, sample)
        judge.outcome(sample, (actual, device), (expected, host), exact)
        judge.signs(str(sample), actual, expected, exact)
