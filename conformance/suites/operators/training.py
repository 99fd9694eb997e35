"""Training cell of one operator: the forward with gradients on, and backward with seeded cotangents."""

from __future__ import annotations

import functools
from dataclasses import replace

import torch

from conformance.finding import EnvironmentLacks
from conformance.numerics.compare import compare, plain, same_bits
from conformance.numerics.trees import leaves, tensors

from . import choices, derivatives, execution, large
from .arrangements import dense
from .classes import is_uninitialised, op_class
from .execution import HOST, OperatorSample, call, host_gradients, processed
from .judging import Judge, with_equal_strides
from .oracle import Oracle, of_forward, of_gradients
from .passes import Pass, cotangents, differentiable
from .sampling import limits
from .variants import representative

#: The backward of an ordinary pass.
PLAIN = Pass()


def check_cell(
    info, dtype: torch.dtype, device: torch.device, check, samples: list[OperatorSample], *, probe: bool
) -> None:
    """Compare an operator's forward and backward with the host's.

    A ``probe`` runs the device first, so that the device's exception for the first sample is raised.
    """
    watched = limits().training.watched
    judge = Judge(check, device, op_class(info), watched, values=not is_uninitialised(info), info=info)
    if probe:
        PLAIN.run(info, execution.execute, execution.gradients, samples[0].on(device), seed=0)
    failure = None
    measured = 0 if probe else limits().oracle.samples
    for order, sample in enumerate(samples):
        failure = check_sample(info, judge, sample, with_oracle=order < measured) or failure
    if judge.samples == 0:
        raise failure or EnvironmentLacks("no sample of this operator has a gradient to compare")
    if not probe and judge.values:
        _check_further(info, judge, samples, dtype)
    judge.report()


def _check_further(info, judge: Judge, samples: list[OperatorSample], dtype: torch.dtype) -> None:
    """Compare further passes and derivatives over one sample whose values do not depend on random numbers."""
    fixed = [sample for sample in samples if sample.number not in judge.drawn]
    if not fixed:
        return
    sample = representative(fixed)
    for name, arranged, kind in derivatives.passes(info, sample):
        check_sample(info, judge, replace(arranged, tier=name), with_oracle=False, kind=kind, is_further=True)
    derivatives.check_further(info, judge, sample, int(torch.randint(2**31, ())))
    for grown in large.grown(info, fixed, dtype):
        check_sample(info, judge, grown, with_oracle=False)


def check_sample(
    info,
    judge: Judge,
    sample: OperatorSample,
    *,
    with_oracle: bool,
    kind: Pass = PLAIN,
    is_further: bool = False,
) -> Exception | None:
    """Compare forward and backward of one sample; return an exception if the host refuses the sample.

    A further pass is left out where the host refuses it, or computes it otherwise than for contiguous tensors.
    """
    host, device = sample.on(torch.device("cpu")), sample.on(judge.device)
    seed = int(torch.randint(2**31, ()))
    try:
        expected, expected_gradients = kind.run(info, call, host_gradients, host, seed)
    except Exception as refusal:  # without a reference the device need not give a result either
        if is_further:
            return None
        return _device_refusal(info, device, seed) or EnvironmentLacks(f"PyTorch's CPU has no reference ({refusal})")
    # A generator that is not where the seed put it has drawn numbers.
    if not torch.equal(torch.get_rng_state(), _state_after_seeding(seed)):
        judge.drawn.add(sample.number)
        judge.drew()
    if is_further and not _is_sound(info, judge, sample, kind, (expected, expected_gradients), seed):
        return None
    with judge.watches.together():
        actual, actual_gradients = kind.run(info, judge.watches.execute, judge.watches.gradients, device, seed)
    judge.metadata(str(sample), actual, expected, with_equal_strides(device, host), sample)
    judge.samples += 1
    if not judge.values or _drew_differently(judge, actual, expected, seed, info, sample):
        return None
    device_run, host_run = (actual, actual_gradients), (expected, expected_gradients)
    _judge_values(info, judge, sample, device_run, host_run, seed, kind, with_oracle=with_oracle)
    return None


def _is_sound(info, judge: Judge, sample: OperatorSample, kind: Pass, host_run, seed: int) -> bool:
    """Return whether PyTorch's CPU gives the same result and gradients for these tensors as for contiguous ones."""
    # The values of the cotangents stay; their arrangement does not.
    dense_kind = Pass(lambda cotangent: kind.arrange(cotangent).contiguous())
    try:
        due = _values(sample, dense_kind.run(info, call, host_gradients, dense(sample).on(HOST), seed))
    except Exception:  # the host supports this arrangement alone; there is nothing to compare it with
        return True
    oracle = Oracle(
        lambda wide, change: _values(wide, dense_kind.run(info, call, host_gradients, wide, seed, change)), sample
    )
    n = max((float(tensor.numel()) for tensor in sample.tensors), default=1.0)
    return all(
        compare(plain(found), plain(wanted), functools.partial(oracle.leaf, position), judge.op_class, n).right
        for position, (found, wanted) in enumerate(zip(_values(sample, host_run), due, strict=True))
        if isinstance(found, torch.Tensor) and isinstance(wanted, torch.Tensor)
    )


def _values(sample: OperatorSample, run) -> list:
    result, gradients = run
    return [*processed(sample, result), *gradients]


def _state_after_seeding(seed: int) -> torch.Tensor:
    return torch.Generator().manual_seed(seed).get_state()


def _device_refusal(info, device: OperatorSample, seed: int) -> Exception | None:
    try:
        PLAIN.run(info, execution.execute, execution.gradients, device, seed)
    except Exception as refusal:  # the caller raises it unless another sample can be compared
        return refusal
    return None


def _judge_values(
    info, judge: Judge, sample: OperatorSample, device_run, host_run, seed: int, kind: Pass, *, with_oracle: bool
) -> None:
    (actual, actual_gradients), (expected, expected_gradients) = device_run, host_run
    forward = of_forward(info, sample)
    given = cotangents(differentiable(sample, expected), seed, kind.arrange)
    backward = of_gradients(
        info, sample, lambda wide, change: kind.run(info, call, host_gradients, wide, seed, change)[1], given
    )
    n = judge.length(sample, expected)
    if not judge.result(str(sample), sample, actual, expected, forward, n):
        return
    judge.check.that(
        len(actual_gradients) == len(expected_gradients),
        f"{sample}: {len(actual_gradients)} gradients, expected {len(expected_gradients)}",
    )
    length = max(n, float(sum(tensor.numel() for tensor in tensors(expected))) ** 0.5)  # it sums over all outputs
    for i, (gradient, expected_gradient) in enumerate(zip(actual_gradients, expected_gradients, strict=True)):
        label = f"{sample}, gradient of input {i}"
        if i == 0 and (chosen := _gradient_of_choice(info, sample, actual, expected, given)) is not None:
            judge.tensor(label, plain(gradient), chosen, lambda: None, length)
            continue
        if i == 0 and gradient is not None and expected_gradient is not None:
            pair = plain(gradient), plain(expected_gradient)
            if choices.same_among_equals(info, sample.input, *pair):
                expected_gradient = pair[0]
        _judge_gradient(judge, label, gradient, expected_gradient, backward, i, length)
    if with_oracle:
        judge.against_oracle(OperatorSample(sample.number, None), expected_gradients, backward, n)


def _judge_gradient(judge: Judge, label: str, actual, expected, oracle: Oracle, position: int, n: float) -> None:
    if expected is None:
        judge.check.that(actual is None, f"{label}: a gradient where PyTorch has none")
        return
    judge.check.that(actual is not None, f"{label}: no gradient")
    judge.metadata(label, actual.detach(), expected.detach())  # autograd does not define the strides of gradients
    judge.leaf(label, actual, expected, oracle, position, n)


def _gradient_of_choice(info, sample: OperatorSample, actual, expected, given) -> torch.Tensor | None:
    """Return the gradient for a device that has chosen other elements than the host, among equal ones; else None."""
    chosen, usual = tensors(leaves(actual)), tensors(leaves(expected))
    if len(chosen) < 2 or len(given) != 1 or same_bits(plain(chosen[1]), plain(usual[1])):
        return None
    return choices.gradient(info, sample, chosen, given[0])


def _drew_differently(judge: Judge, actual, expected, seed: int, info, sample: OperatorSample) -> bool:
    """Return whether the operator is random and drew other numbers than the host.

    Then only repeatability can be checked: the same seed has to give the same result and gradients.
    """
    if all(same_bits(plain(a), plain(b)) for a, b in zip(tensors(actual), tensors(expected), strict=True)):
        return False
    execution.reseed(seed, torch.device("cpu"))
    state = torch.get_rng_state()
    call(info.op, sample.on(torch.device("cpu")))
    # An operator that draws nothing has wrong values, which the caller compares.
    if torch.equal(state, torch.get_rng_state()):
        return False
    first = PLAIN.run(info, execution.execute, execution.gradients, sample.on(judge.device), seed)
    again = PLAIN.run(info, execution.execute, execution.gradients, sample.on(judge.device), seed)
    pairs = zip(tensors(leaves(list(first))), tensors(leaves(list(again))), strict=True)
    same = all(same_bits(plain(a), plain(b)) for a, b in pairs)
    judge.check.that(same, f"{sample}: the same seed gave different gradients")
    judge.random_result(actual, expected)
    return True
