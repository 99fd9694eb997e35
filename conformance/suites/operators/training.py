"""Training cell of one operator: the forward with gradients on, and backward with seeded cotangents."""

from __future__ import annotations

import torch

from conformance.finding import EnvironmentLacks
from conformance.numerics.compare import plain, same_bits
from conformance.numerics.transfer import copied
from conformance.numerics.trees import leaves, tensors

from . import choices, execution
from .classes import is_uninitialised, op_class
from .execution import OperatorSample, call, host_gradients, processed
from .judging import Judge, with_equal_strides
from .oracle import Oracle, of_forward, of_gradients
from .sampling import limits


def check_cell(
    info, dtype: torch.dtype, device: torch.device, check, samples: list[OperatorSample], *, probe: bool
) -> None:
    """Compare an operator's forward and backward with the host's.

    A ``probe`` runs the device first, so that the device's exception for the first sample is raised.
    """
    watched = limits().training.watched
    judge = Judge(check, device, op_class(info), watched, values=not is_uninitialised(info), info=info)
    if probe:
        _backward(info, execution.execute, execution.gradients, samples[0].on(device), seed=0)
    failure = None
    measured = 0 if probe else limits().oracle.samples
    for order, sample in enumerate(samples):
        failure = check_sample(info, judge, sample, with_oracle=order < measured) or failure
    if judge.samples == 0:
        raise failure or EnvironmentLacks("no sample of this operator has a gradient to compare")
    judge.report()


def check_sample(info, judge: Judge, sample: OperatorSample, *, with_oracle: bool) -> Exception | None:
    """Compare forward and backward of one sample; return an exception if the host refuses the sample."""
    host, device = sample.on(torch.device("cpu")), sample.on(judge.device)
    seed = int(torch.randint(2**31, ()))
    try:
        expected, expected_gradients = _backward(info, call, host_gradients, host, seed)
    except Exception as refusal:  # without a reference the device need not give a result either
        return _device_refusal(info, device, seed) or EnvironmentLacks(f"PyTorch's CPU has no reference ({refusal})")
    # A generator that is not where the seed put it has drawn numbers.
    if judge.check.answers is not None and not torch.equal(torch.get_rng_state(), _state_after_seeding(seed)):
        judge.drew()
    with judge.watches.together():
        actual, actual_gradients = _backward(info, judge.watches.execute, judge.watches.gradients, device, seed)
    judge.metadata(str(sample), actual, expected, with_equal_strides(device, host), sample)
    judge.samples += 1
    if not judge.values or _drew_differently(judge, actual, expected, seed, info, sample):
        return None
    device_run, host_run = (actual, actual_gradients), (expected, expected_gradients)
    _judge_values(info, judge, sample, device_run, host_run, seed, with_oracle=with_oracle)
    return None


def _state_after_seeding(seed: int) -> torch.Tensor:
    return torch.Generator().manual_seed(seed).get_state()


def _device_refusal(info, device: OperatorSample, seed: int) -> Exception | None:
    try:
        _backward(info, execution.execute, execution.gradients, device, seed)
    except Exception as refusal:  # the caller raises it unless another sample can be compared
        return refusal
    return None


def _judge_values(
    info, judge: Judge, sample: OperatorSample, device_run, host_run, seed: int, *, with_oracle: bool
) -> None:
    (actual, actual_gradients), (expected, expected_gradients) = device_run, host_run
    forward = of_forward(info, sample)
    outputs = [leaf for leaf in processed(sample, expected) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    backward = of_gradients(
        info,
        sample,
        lambda wide, change: _backward(info, call, host_gradients, wide, seed, change)[1],
        cotangents(outputs, seed),
    )
    n = judge.length(sample, expected)
    if not judge.result(str(sample), sample, actual, expected, forward, n):
        return
    length = max(n, float(sum(tensor.numel() for tensor in tensors(expected))) ** 0.5)  # it sums over all outputs
    for i, (gradient, expected_gradient) in enumerate(zip(actual_gradients, expected_gradients, strict=True)):
        label = f"{sample}, gradient of input {i}"
        if i == 0 and (chosen := _gradient_of_choice(info, sample, actual, expected, outputs, seed)) is not None:
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


def _gradient_of_choice(info, sample: OperatorSample, actual, expected, outputs, seed: int) -> torch.Tensor | None:
    """Return the gradient for a device that has chosen other elements than the host, among equal ones; else None."""
    chosen, usual = tensors(leaves(actual)), tensors(leaves(expected))
    if len(chosen) < 2 or len(outputs) != 1 or same_bits(plain(chosen[1]), plain(usual[1])):
        return None
    return choices.gradient(info, sample, chosen, cotangents(outputs, seed)[0])


def _backward(info, run, differentiate, sample: OperatorSample, seed: int, change=None):
    """Return the result, and the gradients of all inputs with ``requires_grad``, in order.

    ``change``, if given, is applied to each cotangent.
    """
    # All sides start from one seed: a device with the host's generator then draws the host's numbers.
    execution.reseed(seed, sample.device)
    result = run(info.op, sample)
    outputs = [leaf for leaf in processed(sample, result) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    inputs = _unique(tensor for tensor in sample.tensors if tensor.requires_grad)
    if not outputs or not inputs:
        return result, []
    drawn = cotangents(outputs, seed)
    return result, list(differentiate(outputs, inputs, [change(each) for each in drawn] if change else drawn))


def _unique(found) -> list[torch.Tensor]:
    """Return each tensor once: a sample may pass the same tensor in two arguments."""
    return list({id(tensor): tensor for tensor in found}.values())


def cotangents(outputs: list[torch.Tensor], seed: int) -> list[torch.Tensor]:
    """Return seeded normal cotangents with the outputs' shapes, dtypes and devices.

    They are drawn in float32 and rounded to bfloat16, so that they are equal in every precision.
    """
    generator = torch.Generator().manual_seed(seed)
    drawn = []
    for output in outputs:
        # float32 by name: the oracle runs under another default dtype, which would draw other numbers.
        parts = [torch.randn(output.shape, generator=generator, dtype=torch.float32) for _ in "ri"]
        values = torch.complex(*parts) if output.is_complex() else parts[0]
        values = _rounded(values).to(output.dtype)
        values = values if output.layout is torch.strided else values.to_sparse(layout=output.layout)
        drawn.append(copied(values, output.device))
    return drawn


def _rounded(values: torch.Tensor) -> torch.Tensor:
    if values.is_complex():
        return torch.complex(_rounded(values.real), _rounded(values.imag))
    return values.bfloat16().float()


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
    first = _backward(info, execution.execute, execution.gradients, sample.on(judge.device), seed)
    again = _backward(info, execution.execute, execution.gradients, sample.on(judge.device), seed)
    pairs = zip(tensors(leaves(list(first))), tensors(leaves(list(again))), strict=True)
    same = all(same_bits(plain(a), plain(b)) for a, b in pairs)
    judge.check.that(same, f"{sample}: the same seed gave different gradients")
    judge.random_result(actual, expected)
    return True
