"""Inference cell of one operator: plain results, layouts, out= and in-place variants, special values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from conformance.finding import EnvironmentLacks
from conformance.numerics.budgets import OpClass

from . import (
    bounds,
    certain_draws,
    direct_calls,
    execution,
    formats,
    indices,
    large,
    lengths,
    long_draws,
    mixed_dtypes,
    oracle,
    promises,
    randomness,
    sampling,
    settings,
    singular,
    special_inputs,
    tiers,
    variants,
    wrong_calls,
)
from .classes import is_uninitialised, op_class
from .execution import OperatorSample, host_call
from .judging import Judge
from .sampling import limits

#: Added to the number of a sample of special values for one of many.
_MANY = 50


def check_cell(
    info, dtype: torch.dtype, device: torch.device, check, samples: list[OperatorSample], *, probe: bool
) -> None:
    """Compare an operator's forward results with the host's.

    A ``probe`` compares the plain results only, and raises the device's exception for the first sample.
    """
    watched = limits().inference.watched
    judge = Judge(check, device, op_class(info), watched, values=not is_uninitialised(info), info=info)
    if probe:
        execution.execute(info.op, samples[0].on(device))  # a refusal ends the probe here, before anything is computed
    # The first samples run under one profile; those after it run and are compared one by one.
    first = judge.watches.span(samples)
    measured = 0 if probe else limits().oracle.samples
    failure = check_samples(info, judge, samples[:first], measured)
    for order, sample in enumerate(samples[first:], first):
        # Of the samples for the oracle, ``measured - order`` are left.
        failure = check_samples(info, judge, [sample], measured - order) or failure
    if not probe:
        for sample in (*tiers.edge_sizes(info, dtype), *lengths.samples(info, dtype, requires_grad=False)):
            check_samples(info, judge, [sample])
        grown = large.grown(info, samples, dtype)
        for sample in (*grown, *large.batched(info, samples, dtype), *large.with_ties(info, dtype)):
            check_samples(info, judge, [sample])
        special_inputs.check_long_integers(info, judge, samples, dtype)
        mixed_dtypes.check(info, judge, dtype)
        long_draws.check(info, judge, samples, dtype)
        certain_draws.check(info, judge, dtype)
        check_specials(info, judge, dtype)
        special_inputs.check(info, judge, samples, dtype)
        special_inputs.check_long_floats(info, judge, samples, dtype)
        settings.check(info, judge, samples, dtype)
        variants.check(info, judge, samples, dtype)
        indices.check(info, judge, samples, dtype)
        for sample in grown if judge.values else ():
            variants.forms(info, judge, sample)
        _check_unlike_operands(info, judge, samples, dtype)
        wrong_calls.check(info, judge, samples, dtype)
        singular.check(info, judge, samples, dtype)
        if sampling.is_deep():
            _check_deep(info, judge, samples, dtype)
    _require_evidence(judge, failure)
    judge.report()
    if not probe:
        bounds.check(info, judge, samples, dtype)


def _check_unlike_operands(info, judge: Judge, samples: list[OperatorSample], dtype: torch.dtype) -> None:
    """Compare calls, with their other forms, in which one operand alone is transposed, or has its channels last."""
    if not sampling.is_first_dtype(info, dtype):
        return
    for sample in (*tiers.ragged_matrices(info, dtype), *formats.mixed(info, samples)):
        check_samples(info, judge, [sample])
        if judge.values and sample.number not in judge.drawn:
            variants.forms(info, judge, sample)


def _check_deep(info, judge: Judge, samples: list[OperatorSample], dtype: torch.dtype) -> None:
    """Compare direct calls of overloads, and samples with more elements than a number of float32 counts."""
    direct_calls.check(info, judge, samples, seed=0)
    if dtype is torch.float32 and judge.op_class is not OpClass.ITERATIVE:
        for sample in large.grown(info, samples, dtype, limits().large.counted):
            check_samples(info, judge, [sample])


def _require_evidence(judge: Judge, failure: Exception | None) -> None:
    """Raise if no sample was compared: the device's exception if it has one, else a lack of the environment."""
    if judge.samples == 0:
        raise failure or EnvironmentLacks("PyTorch's CPU cannot compute any sample, so nothing can be compared here.")


@dataclass
class SampleRun:
    """One sample with the results of the host and of the device.

    The device does not run a sample that the host refuses, or for which the host draws random numbers.
    """

    sample: OperatorSample
    host: OperatorSample
    device: OperatorSample
    expected: Any = None
    refusal: Exception | None = None
    draws: bool = False
    answer: Any = None
    error: Exception | None = None


def check_samples(info, judge: Judge, samples: list[OperatorSample], measured: int = 0) -> Exception | None:
    """Compare samples, the first ``measured`` with the oracle too.

    All device calls run before the first comparison, so that one profile spans them. Return the exception for the
    last sample that the host refused, else None.
    """
    runs = [_run_on_host(info, judge, sample) for sample in samples]
    _run_on_device(info, judge, runs)
    failure = None
    for order, run in enumerate(runs):
        failure = _compare(info, judge, run, with_oracle=order < measured) or failure
    return failure


def _run_on_host(info, judge: Judge, sample: OperatorSample) -> SampleRun:
    made = host_call(info.op, sample)
    # A call that moves the host's generator draws random numbers; its values cannot be compared one by one.
    draws = made.error is None and judge.values and made.draws
    return SampleRun(sample, made.given, sample.on(judge.device), made.value, made.error, draws)


def _run_on_device(info, judge: Judge, runs: list[SampleRun]) -> None:
    """Run the samples on the device up to the first exception, which ``_compare`` raises in its turn."""
    with judge.watches.together():
        for run in runs:
            if run.refusal is not None or run.draws:
                continue
            try:
                run.answer = judge.watches.execute(info.op, run.device)
            except Exception as error:  # the samples before it are compared first
                run.error = error
                return


def _compare(info, judge: Judge, run: SampleRun, *, with_oracle: bool) -> Exception | None:
    if run.refusal is not None:
        return _device_refusal(info, run.device) or _no_reference(run.refusal)
    if run.draws:
        judge.drew()
        randomness.check(info, judge, run.sample, run.expected)
        return None
    if run.error is not None:
        raise run.error
    pairs = (run.answer, run.device), (run.expected, run.host)
    judge.outcome(run.sample, *pairs, oracle.of_forward(info, run.sample), with_oracle=with_oracle)
    return None


def _device_refusal(info, device: OperatorSample) -> Exception | None:
    try:
        execution.execute(info.op, device)
    except Exception as refusal:  # the caller raises it unless another sample can be compared
        return refusal
    return None


def _no_reference(refusal: Exception) -> Exception:
    return EnvironmentLacks(f"PyTorch's CPU has no reference for this cell ({type(refusal).__name__}).")


def check_specials(info, judge: Judge, dtype: torch.dtype) -> None:
    """Compare results for NaN, infinities, signed zeros and subnormals, with the signs of zeros."""
    for sample in tiers.special_values(info, dtype, subnormals=judge.check.subnormals):
        made, device = host_call(info.op, sample), sample.on(judge.device)
        if isinstance(made.error, TypeError) and not all(isinstance(given, torch.Tensor) for given in sample.args):
            continue  # the operator takes no number in the place of its second tensor
        if made.error is not None:
            raise made.error
        if made.draws:
            return  # drawn numbers cannot be compared element by element
        actual, expected = execution.execute(info.op, device), made.value
        exact = oracle.of_forward(info, sample)
        judge.outcome(sample, (actual, device), (expected, made.given), exact)
        if promises.promises_zero_signs(info):
            judge.signs(str(sample), actual, expected, exact)
        variants.forms(info, judge, sample)
        if judge.values and isinstance(expected, torch.Tensor) and expected.dtype is torch.bool:
            _check_truth(info, judge, sample)


def _check_truth(info, judge: Judge, sample: OperatorSample) -> None:
    """Compare truth values of special values in other arrangements, and of many: of ordinary ones, most are alike."""
    variants.rearranged(info, judge, sample)
    if isinstance(sample.input, torch.Tensor) and not sample.args and sample.input.dtype is torch.float32:
        rows = -(-limits().large.elements // sample.input.numel())
        many = replace(
            sample, input=sample.input.repeat(rows), number=sample.number + _MANY, tier="many special values"
        )
        check_samples(info, judge, [many])
        variants.forms(info, judge, many)
