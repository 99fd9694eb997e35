"""The forward cell of one operator: plain results, layouts, out= and in-place variants, special values."""

from __future__ import annotations

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
    failure = None
    measured = 0 if probe else limits().oracle.samples
    for order, sample in enumerate(samples):
        failure = check_sample(info, judge, sample, with_oracle=order < measured) or failure
    if not probe:
        for sample in tiers.edge_sizes(info, dtype):
            check_sample(info, judge, sample, with_oracle=False)
        check_specials(info, judge, dtype)
        variants.check(info, judge, samples)
    _require_evidence(judge, failure)
    judge.report()


def _require_evidence(judge: Judge, failure: Exception | None) -> None:
    """All samples raised, on the device and on the host alike: say what the device said."""
    if judge.samples == 0:
        raise failure or EnvironmentLacks("PyTorch's CPU cannot compute any sample, so nothing can be compared here.")


def check_sample(info, judge: Judge, sample: Sample, *, with_oracle: bool) -> Exception | None:
    """Compare one sample; returns the device's exception when the host refuses the sample as well."""
    host, device = sample.on(torch.device("cpu")), sample.on(judge.device)
    state = torch.get_rng_state()
    try:
        expected = call(info.op, host)
    except Exception as refusal:  # the reference has no answer: then the device owes none either
        return _device_refusal(info, device) or _no_reference(refusal)
    if not torch.equal(state, torch.get_rng_state()) and judge.values:
        judge.drew()
        randomness.check(info, judge, sample, expected)
        return None
    actual = judge.watches.execute(info.op, device)
    judge.outcome(sample, (actual, device), (expected, host), oracle.of_forward(info, sample), with_oracle=with_oracle)
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
