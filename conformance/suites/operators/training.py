"""Training cell of one operator: the forward with gradients on, and backward with seeded cotangents."""

from __future__ import annotations

import functools
from dataclasses import replace

import torch

from conformance.finding import EnvironmentLacks
from conformance.numerics.budgets import OF_SUMS, OpClass
from conformance.numerics.compare import compare, plain, same_bits
from conformance.numerics.trees import leaves, tensors

from . import (
    choices,
    database,
    derivatives,
    direct_calls,
    execution,
    indices,
    kernels,
    large,
    lengths,
    sampling,
    settings,
    special_inputs,
)
from .arrangements import dense, is_dense
from .classes import is_uninitialised, op_class
from .execution import HOST, OperatorSample, call, host_gradients, processed
from .judging import Judge, with_equal_strides
from .oracle import Oracle, of_forward, of_gradients
from .passes import Pass, cotangents, differentiable
from .promises import reference_refuses
from .randomness import repeats
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
    seed = int(torch.randint(2**31, ()))
    # Kernels get the numbers that the host has drawn as arguments, and draw none.
    kernels.check(info, judge, [*samples, *_images_with_tuples(info, judge, fixed, dtype)], dtype, seed)
    if sampling.is_deep():
        direct_calls.check(info, judge, samples, seed)
    if not fixed:
        return
    sample = representative(fixed)
    for name, arranged, kind in _further_passes(info, fixed, sample, dtype):
        check_sample(info, judge, replace(arranged, tier=name), with_oracle=False, kind=kind, is_further=True)
    if info.inplace_variant is not None and info.supports_inplace_autograd and isinstance(sample.input, torch.Tensor):
        # It keeps its result for the backward, where the other form keeps its input.
        in_place = replace(sample, tier="in-place variant")
        check_sample(database.InPlace(info), judge, in_place, with_oracle=False, is_further=True)
    for one in (sample, *_of_other_formulas(info, judge, fixed, sample, dtype)):
        derivatives.check_further(info, judge, one, seed)
    special_inputs.check_gradients(info, judge, sample, seed)
    special_inputs.check_equal_operands(info, judge, fixed, dtype, seed)
    _check_settings(info, judge, fixed, dtype)
    _check_second_backward(info, judge, sample, seed)
    if sampling.is_first_dtype(info, dtype):
        _check_equal_indices(info, judge, fixed)
    for longer in lengths.samples(info, dtype, requires_grad=True):
        check_sample(info, judge, longer, with_oracle=False)
    if info.name in limits().large.untrained:
        return
    for grown in large.grown(info, fixed, dtype, trained=True):
        check_sample(info, judge, grown, with_oracle=False)


def _further_passes(
    info, samples: list[OperatorSample], first: OperatorSample, dtype: torch.dtype
) -> list[tuple[str, OperatorSample, Pass]]:
    """Return name, sample and kind of each further backward."""
    further = list(derivatives.passes(info, first))
    if dtype is torch.float32:
        # A kernel for some gradients alone may be wrong for other shapes than the first sample's.
        further += [one for other in samples if other is not first for one in derivatives.passes_of_subsets(other)]
    return further


def _of_other_formulas(
    info, judge: Judge, samples: list[OperatorSample], first: OperatorSample, dtype: torch.dtype
) -> list[OperatorSample]:
    """Return samples with other kinds of arguments, and with other words, whose derivatives may have other formulas."""
    if not sampling.is_first_dtype(info, dtype):
        return []
    kinds = special_inputs.unlike(info, judge, [other for other in samples if other is not first])
    return [*kinds, *settings.with_words(info, representative(samples, plain=True))]


def _check_equal_indices(info, judge: Judge, samples: list[OperatorSample]) -> None:
    """Compare gradients for equal indices, also with other defaults such as a scale by their frequency."""
    with_indices = special_inputs.unlike(info, judge, samples, most=len(samples))
    if info.name in limits().indices.repeated:
        with_indices += settings.with_defaults(info, representative(samples, plain=True))
    for repeated in indices.repeated(info, with_indices):
        check_sample(info, judge, repeated, with_oracle=False, is_further=True)


def _check_second_backward(info, judge: Judge, sample: OperatorSample, seed: int) -> None:
    """Check that a second backward over one graph gives the gradients of the first: it keeps what the forward saved."""
    try:
        PLAIN.run(info, call, execution.gradients_twice, sample.on(HOST), seed)
    except Exception:  # the host's graph serves one backward
        return
    _, found = PLAIN.run(info, execution.execute, execution.gradients_twice, sample.on(judge.device), seed)
    first, second = found[: len(found) // 2], found[len(found) // 2 :]
    judge.check.that(repeats(first, second), f"{sample}: a second backward over the graph gave other gradients")


def _check_settings(info, judge: Judge, samples: list[OperatorSample], dtype: torch.dtype) -> None:
    """Compare gradients of calls with other numbers and other defaults, in one dtype."""
    if not sampling.is_first_dtype(info, dtype) or judge.op_class is OpClass.ITERATIVE:
        return
    unlike = special_inputs.unlike(info, judge, samples)
    with_numbers = [other for each in unlike for other in settings.with_numbers(info, each, dtype)]
    with_tuples = _images_with_tuples(info, judge, samples, dtype)
    others = list(settings.with_defaults(info, representative(samples, plain=True)))
    others += settings.with_words(info, representative(samples, plain=True))
    others += [other for each in samples for other in settings.with_present_index(info, each)]
    others += [other for each in samples for other in settings.with_images(info, each)]
    others += settings.beyond(info, samples)
    for other in (*with_numbers, *with_tuples, *others):
        try:
            check_sample(info, judge, other, with_oracle=False, is_further=True)
        except NotImplementedError:
            judge.check.metric("settings", f"not supported: {other.tier}")


def _images_with_tuples(info, judge: Judge, samples: list[OperatorSample], dtype: torch.dtype) -> list[OperatorSample]:
    """Return samples of images of every number of dimensions, with a number for each dimension."""
    most = limits().inference.samples
    every_kind = special_inputs.unlike(info, judge, _images(info, samples, dtype), most, by_dims=True)
    return [other for each in every_kind for other in settings.with_tuples(info, each)]


def _images(info, samples: list[OperatorSample], dtype: torch.dtype) -> list[OperatorSample]:
    """Return more samples of an operator on images: the few of this cell lack some kinds of its settings."""
    if not any(isinstance(sample.input, torch.Tensor) and sample.input.dim() > 3 for sample in samples):
        return []
    with torch.random.fork_rng(devices=()):  # they must not change later draws
        return sampling.pick(info, dtype, requires_grad=True, extent=limits().inference)


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
    given: list[torch.Tensor] = []

    def differentiate(outputs, inputs, cotangents_):
        given.extend(cotangents_)
        return judge.watches.gradients(outputs, inputs, cotangents_)

    try:
        with judge.watches.together():
            actual, actual_gradients = kind.run(info, judge.watches.execute, differentiate, device, seed)
    except Exception:
        if is_further and reference_refuses(info, sample):
            return None
        raise
    judge.metadata(str(sample), actual, expected, with_equal_strides(device, host), sample)
    judge.samples += 1
    if not judge.values or _drew_differently(judge, actual, expected, seed, info, sample):
        return None
    device_run, host_run = (actual, actual_gradients), (expected, expected_gradients)
    due = cotangents(differentiable(sample, expected), seed, kind.arrange)
    _judge_values(info, judge, sample, device_run, host_run, (seed, kind, due), with_oracle=with_oracle)
    for position, (after, before) in enumerate(zip(given, due, strict=False)):
        kept = same_bits(plain(after), plain(before))
        judge.check.that(kept, f"{sample}: the backward changed the gradient that it got for output {position}")
    return None


def _is_sound(info, judge: Judge, sample: OperatorSample, kind: Pass, host_run, seed: int) -> bool:
    """Return whether PyTorch's CPU gives the same result and gradients for these tensors as for contiguous ones."""
    if kind == PLAIN and is_dense(sample):
        return True  # it would be the same call once more
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
    info, judge: Judge, sample: OperatorSample, device_run, host_run, backward_of, *, with_oracle: bool
) -> None:
    """Compare results and gradients; ``backward_of`` are the seed, the kind and the cotangents of the backward."""
    seed, kind, given = backward_of
    (actual, actual_gradients), (expected, expected_gradients) = device_run, host_run
    forward = of_forward(info, sample)
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
    outputs = sum(tensor.numel() for tensor in tensors(expected))
    length = max(n, float(outputs) ** 0.5)  # it sums over all outputs
    of_sums = judge.of_class(OF_SUMS.get(judge.op_class, judge.op_class))
    for i, (gradient, expected_gradient) in enumerate(zip(actual_gradients, expected_gradients, strict=True)):
        label = f"{sample}, gradient of input {i}"
        if i == 0 and (chosen := _gradient_of_choice(info, sample, actual, expected, given)) is not None:
            judge.tensor(label, plain(gradient), chosen, lambda: None, length)
            continue
        if i == 0 and gradient is not None and expected_gradient is not None:
            expected_gradient = choices.settled_gradient(info, sample, gradient, expected_gradient)
        if expected_gradient is not None and expected_gradient.numel() < outputs:
            _judge_gradient(of_sums, label, gradient, expected_gradient, backward.rounding(), i, length)
            continue
        # A complex derivative is composed of several real ones.
        by = of_sums if expected_gradient is not None and expected_gradient.is_complex() else judge
        _judge_gradient(by, label, gradient, expected_gradient, backward, i, length)
    judge.worst, judge.ratio = max(judge.worst, of_sums.worst), max(judge.ratio, of_sums.ratio)
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
    same = repeats(leaves(list(first)), leaves(list(again)))
    judge.check.that(same, f"{sample}: the same seed gave different gradients")
    judge.random_result(actual, expected)
    return True
