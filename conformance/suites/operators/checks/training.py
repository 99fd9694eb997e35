"""Forward with gradients on, and backward with seeded cotangents: families of training cells."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from conformance.accelerators.capabilities import Mode
from conformance.judging.finding import EnvironmentLacks
from conformance.numerics.budgets import OF_SUMS, OpClass
from conformance.numerics.compare import compare, plain, same_bits
from conformance.numerics.covering import covering
from conformance.numerics.trees import leaves, tensors
from conformance.suites.operators.calls import execution, sampling
from conformance.suites.operators.calls.calls import HOST, Around, Call
from conformance.suites.operators.calls.execution import OnCopy, call, host_gradients, perform, processed
from conformance.suites.operators.calls.facts import facts
from conformance.suites.operators.calls.passes import PLAIN, Pass, cotangents, differentiable
from conformance.suites.operators.inputs import (
    arrangements,
    beyond_squares,
    conjunctions,
    elsewhere,
    forms,
    indices,
    large,
    lengths,
    long_axes,
    mixed_dtypes,
    model_sizes,
    no_rows,
    settings,
    special_inputs,
)
from conformance.suites.operators.inputs.arrangements import dense_of, is_dense, usual_of
from conformance.suites.operators.inputs.families import Stage, check, source
from conformance.suites.operators.inputs.kinds import of_most_dims, representative, unlike
from conformance.suites.operators.inputs.randomness import repeats
from conformance.suites.operators.judge import choices
from conformance.suites.operators.judge.cells import Cell
from conformance.suites.operators.judge.judging import with_equal_strides
from conformance.suites.operators.judge.oracle import Oracle, of_forward, of_gradients
from conformance.suites.operators.judge.promises import reference_refuses

from . import derivatives, kernels

#: Calls of a cell that are unusual in several ways: in the dtypes of models, and in the others.
_UNUSUAL, _FEW_UNUSUAL = 4, 2
#: Least dimensions of an image: batch, channels and places. Most tensors of one that gets many batches, and numbers of
#: dimensions for which there is such a call.
_IMAGE, _TENSORS, _DIMS = 3, 2, 2
#: Samples of a cell whose parameters have another dtype.
_OF_TWO_DTYPES = 2
#: Divides the elements of large samples for those of many batches.
_FEWER = 4


def check_own(cell: Cell, sample: Call) -> None:
    """Compare forward and backward of a call that every host computes."""
    check_sample(cell, sample)


def check_more(cell: Cell, sample: Call) -> None:
    """Compare a further pass, which is left out where the host does not compute it as for contiguous tensors."""
    check_sample(cell, sample, is_further=True)


def check_setting(cell: Cell, sample: Call) -> None:
    """Compare a further pass; that the device does not support it is a note."""
    try:
        check_more(cell, sample)
    except NotImplementedError:
        cell.check.metric("settings", f"not supported: {sample.source}")


@check(Mode.TRAINING)
def kernels_behind(cell: Cell) -> None:
    """Compare the kernels behind the samples. They get the numbers that the host has drawn, and draw none.

    In other dtypes than float32, they are those behind one sample.
    """
    if cell.dtype is torch.float32:
        kernels.check(cell, [*cell.samples, *_images_with_tuples(cell)])
    elif cell.fixed and cell.dtype.is_floating_point:
        kernels.check(cell, [representative(cell.fixed)])


@source(Mode.TRAINING, check_more, fixed=True)
def further_passes(cell: Cell) -> Iterator[Call]:
    """Yield one sample with every further backward, and in float32 the others with gradients of some inputs alone."""
    first = representative(cell.fixed)
    yield from derivatives.passes(cell.info, first)
    if cell.dtype is torch.float32:
        # A kernel for some gradients alone may be wrong for other shapes than the first sample's.
        yield from (one for other in cell.fixed if other is not first for one in derivatives.passes_of_subsets(other))


@source(Mode.TRAINING, check_more, fixed=True)
def further_passes_arranged(cell: Cell) -> Iterator[Call]:
    """Yield one sample with its inputs in every arrangement."""
    yield from arrangements.of(cell.info, representative(cell.fixed))


@source(Mode.TRAINING, check_more, fixed=True)
def in_place(cell: Cell) -> Iterator[Call]:
    """Yield a sample in the in-place form: it keeps its result for the backward, where the other keeps its input."""
    sample, info = representative(cell.fixed), cell.info
    if info.inplace_variant is not None and info.supports_inplace_autograd and isinstance(sample.input, torch.Tensor):
        yield sample.into(forms.IN_PLACE, OnCopy(info.inplace_variant))


@check(Mode.TRAINING, stage=Stage.FORMS, fixed=True)
def further_derivatives(cell: Cell) -> None:
    """Compare second derivatives, forward mode and vmap, also of other kinds of arguments, whose formulas differ."""
    first = representative(cell.fixed)
    others: list[Call] = []
    if cell.is_first_dtype:
        others += unlike(cell, [other for other in cell.fixed if other is not first])
        others += settings.with_words(cell, representative(cell.fixed, plain=True))
    for sample in (first, *others):
        derivatives.check_further(cell, sample)


@check(Mode.TRAINING, fixed=True)
def special_gradients(cell: Cell) -> None:
    """Compare gradients for special values, and for operands that are equal."""
    special_inputs.check_gradients(cell, representative(cell.fixed))
    special_inputs.check_equal_operands(cell)


@source(Mode.TRAINING, check_setting, once=True, fixed=True)
def other_settings(cell: Cell) -> Iterator[Call]:
    """Yield samples with other numbers, other defaults, and fewer arguments: these may have formulas of their own."""
    if cell.op_class is OpClass.ITERATIVE:
        return
    info, samples, plainest = cell.info, cell.fixed, representative(cell.fixed, plain=True)
    of_kinds = unlike(cell, samples)
    for sample in of_kinds:
        yield from settings.with_numbers(cell, sample)
        yield from settings.with_empty_lists(cell, sample)
    yield from settings.with_fewer(cell, of_kinds)
    yield from _images_with_tuples(cell)
    yield from settings.with_defaults(cell, plainest)
    yield from settings.with_words(cell, plainest)
    for sample in samples:
        yield from settings.with_present_index(cell, sample)
        yield from settings.with_images(cell, sample)
    yield from settings.beyond(info, samples)


@source(Mode.TRAINING, check_more, stage=Stage.SEVERAL, fixed=True, checked=True)
def unusual_in_several_ways(cell: Cell) -> Iterator[Call]:
    """Yield calls with a drawn arrangement of each input and of the cotangents, and drawn lengths of some axes."""
    chance = random.Random(f"{cell.info.full_name} {cell.dtype} training")
    pool = unlike(cell, cell.fixed, most=len(cell.fixed))
    for number in range(_UNUSUAL if cell.dtype in conjunctions.DTYPES else _FEW_UNUSUAL) if pool else ():
        given = conjunctions.unusual(cell, chance.choice(pool), chance)
        name, arrange = chance.choice(derivatives.COTANGENTS)
        yield given.named(
            number=conjunctions.NUMBER + number, source=conjunctions.SOURCE, change=name, backward=Pass(arrange)
        )


@source(Mode.TRAINING, check_more, stage=Stage.SEVERAL, once=True, fixed=True, checked=True)
def layouts_in_pairs(cell: Cell) -> Iterator[Call]:
    """Yield calls in which each two of the inputs and the cotangents are expanded and with gaps in all four ways."""
    usual = [representative(cell.fixed)]
    for sample in [*usual, *of_most_dims(cell, usual)]:
        places = arrangements.repeatable(cell.info, sample)
        for chosen in covering(len(places) + 1):
            given = arrangements.in_layout(sample, [places[place] for place in sorted(chosen) if place < len(places)])
            is_expanded = len(places) in chosen
            words, arrange = (
                ("expanded", arrangements.of_several) if is_expanded else ("with gaps", arrangements.with_gaps)
            )
            if given is not None:
                yield given.named(change=f"cotangents {words}", backward=Pass(arrange))


@check(Mode.TRAINING, stage=Stage.FORMS, fixed=True)
def second_backward(cell: Cell) -> None:
    """Check that a second backward over one graph gives the gradients of the first: it keeps what the forward saved."""
    form = "a second backward"
    sample = representative(cell.fixed).named(form=form, backward=Pass(of="gradients_twice"), seed=cell.seed)
    try:
        PLAIN.run(cell.info, call, execution.gradients_twice, sample.on(HOST), cell.seed)
    except Exception:  # the host's graph serves one backward
        return
    _, found = PLAIN.run(cell.info, execution.execute, execution.gradients_twice, cell.on(sample), cell.seed)
    first, second = found[: len(found) // 2], found[len(found) // 2 :]
    cell.judge.claim(sample, repeats(first, second), "the gradients differ from those of the first one")


@check(Mode.TRAINING, stage=Stage.FORMS, once=True, fixed=True)
def deterministic(cell: Cell) -> None:
    """Compare one backward while deterministic algorithms are asked for."""
    sample = representative(cell.fixed).named(change=elsewhere.DETERMINISTIC, around=(Around.DETERMINISTIC,))
    with elsewhere.deterministically(cell):
        check_more(cell, sample)


@source(Mode.TRAINING, check_more, once=True, fixed=True)
def equal_indices(cell: Cell) -> Iterator[Call]:
    """Yield samples with equal indices, also with other defaults such as a scale by their frequency."""
    with_indices = unlike(cell, cell.fixed, most=len(cell.fixed))
    if facts(cell.info.name).equal_indices:
        with_indices += settings.with_defaults(cell, representative(cell.fixed, plain=True))
    yield from indices.repeated(cell.info, with_indices)


def check_narrow(cell: Cell, sample: Call) -> None:
    """Compare a further pass with indices in 32 bits."""
    indices.check_narrow(cell, sample, check_more)


@source(Mode.TRAINING, check_narrow, once=True, fixed=True)
def narrow_indices(cell: Cell) -> Iterator[Call]:
    """Yield samples with each setting and indices in 32 bits: gradients may have a kernel for each dtype of these."""
    yield from indices.narrow(cell, cell.fixed)


@source(Mode.TRAINING, check_more, once=True, fixed=True)
def empty_dimensions(cell: Cell) -> Iterator[Call]:
    """Yield calls without rows in a dimension: gradients of what has no elements, and those of no terms."""
    yield from no_rows.empty_of(cell)


@source(Mode.TRAINING, check_own, dtypes=(torch.float16,), fixed=True)
def large_numbers(cell: Cell) -> Iterator[Call]:
    """Yield samples whose inputs and cotangents have squares and exponentials beyond float16.

    Where a gradient itself is beyond it, the inputs are large alone, and so are the cotangents.
    """
    has_large = False
    usual = representative(cell.fixed).named(number=beyond_squares.NUMBER + 2, source="usual numbers")
    for sample in (*beyond_squares.scaled(cell), usual):
        given = sample.named(change="large cotangents", backward=Pass(beyond_squares.enlarge))
        if (sample is not usual or not has_large) and _is_finite(cell, given):
            has_large = True
            yield given
        elif sample is not usual and _is_finite(cell, plainly := sample.named(backward=PLAIN)):
            yield plainly


def _check_supported(cell: Cell, sample: Call) -> None:
    """Compare forward and backward, if the device takes the call: the claim is for tensors of one dtype."""
    if execution.attempt(execution.execute, cell.info, cell.on(sample)).error is None:
        check_own(cell, sample)
    else:
        cell.check.metric("mixed_dtypes", f"refused: {sample.source}")


@source(Mode.TRAINING, _check_supported, dtypes=(torch.bfloat16,), fixed=True, checked=True)
def wide_parameters(cell: Cell) -> Iterator[Call]:
    """Yield samples whose tensors behind the first are of float32: their gradients are of float32, too."""
    yield from mixed_dtypes.with_wide_parameters(cell, unlike(cell, cell.fixed, _OF_TWO_DTYPES))


def _is_finite(cell: Cell, sample: Call) -> bool:
    """Return whether the host computes a pass, and neither its result nor a gradient overflows."""
    try:
        run = sample.backward.run(cell.info, call, host_gradients, sample.on(HOST), _seed(sample))
        return all(bool(tensor.isfinite().all()) for tensor in tensors(list(run)))
    except Exception:  # each operator refuses in its own way
        return False


@source(Mode.TRAINING, check_own, stage=Stage.LARGE, fixed=True)
def longer(cell: Cell) -> Iterator[Call]:
    """Yield lengths at their ends, and large samples."""
    yield from lengths.samples(cell.info, cell.dtype, requires_grad=True)
    if not facts(cell.info.name).untrained:
        yield from large.grown(cell.info, cell.fixed, cell.dtype, cell.work.large, trained=True)


@source(Mode.TRAINING, check_own, stage=Stage.LARGE, once=True, fixed=True)
def many_batches(cell: Cell) -> Iterator[Call]:
    """Yield small images in more batches than a launch has blocks in y, for two numbers of dimensions.

    Operators that have sizes of models have such batches there.
    """
    name = cell.info.name
    if not name.startswith("nn.functional.") or model_sizes.has_large_sizes(cell.info) or facts(name).untrained:
        return
    amount = replace(cell.work.large, elements=cell.work.large.elements // _FEWER)
    found: set[int] = set()
    for sample in sorted(filter(_is_image, cell.fixed), key=lambda one: one.elements)[: amount.tried]:
        dims = sample.input.dim()
        if dims in found or len(found) == _DIMS:
            continue
        if (made := next(large.batched(cell.info, [sample], cell.dtype, amount), None)) is not None:
            found.add(dims)
            yield made.named(number=made.number + dims)


@source(Mode.TRAINING, check_own, stage=Stage.LARGE, once=True, fixed=True)
def one_long_axis(cell: Cell) -> Iterator[Call]:
    """Yield a sample with each axis long in turn: backward kernels have limits of their own for each axis."""
    if not facts(cell.info.name).untrained:
        yield from long_axes.trained(cell)


def _is_image(sample: Call) -> bool:
    """Return whether a sample's input has a batch, channels and places, and at most one tensor is beside it."""
    first = sample.input
    is_image = isinstance(first, torch.Tensor) and first.dim() >= _IMAGE and first.numel() > 0
    return is_image and len(sample.tensors) <= _TENSORS


@source(Mode.TRAINING, check_own, stage=Stage.LARGE)
def sizes_of_models(cell: Cell) -> Iterator[Call]:
    """Yield calls of sizes that models have: of products and choices in every dtype, of others in that of training.

    A library has kernels of products for each dtype. In the deep tier, all have every dtype.
    """
    in_each_dtype = cell.op_class is OpClass.CONTRACTION or facts(cell.info.name).is_selection
    if cell.deep or cell.dtype is torch.bfloat16 or in_each_dtype:
        yield from model_sizes.calls(cell, trained=True)


def _images_with_tuples(cell: Cell) -> list[Call]:
    """Return samples of images of every number of dimensions, with a number for each dimension."""
    every_kind = unlike(cell, _images(cell), cell.work.inference.samples, by_dims=True)
    return [other for each in every_kind for other in settings.with_tuples(cell, each)]


def _images(cell: Cell) -> list[Call]:
    """Return more samples of an operator on images: the few of this cell lack some kinds of its settings."""
    if not any(isinstance(sample.input, torch.Tensor) and sample.input.dim() > 3 for sample in cell.fixed):
        return []
    with torch.random.fork_rng(devices=()):  # they must not change later draws
        return sampling.pick(cell.info, cell.dtype, requires_grad=True, extent=cell.work.inference)


# --- one sample -------------------------------------------------------------------------------------------------------


def check_sample(cell: Cell, sample: Call, *, with_oracle: bool = False, is_further: bool = False) -> Exception | None:
    """Compare forward and backward of one sample; return an exception if the host refuses the sample.

    A further pass is left out where the host refuses it, or computes it otherwise than for contiguous tensors.
    """
    kind, seed = sample.backward or PLAIN, _seed(sample)
    sample = sample.named(backward=kind, seed=seed)
    host, device = sample.on(HOST), cell.on(sample)
    try:
        expected, expected_gradients = kind.run(cell.info, call, host_gradients, host, seed)
    except Exception as refusal:  # without a reference the device need not give a result either
        if is_further:
            return None
        return _device_refusal(cell, device, seed) or EnvironmentLacks(f"PyTorch's CPU has no reference ({refusal})")
    # A generator that is not where the seed put it has drawn numbers.
    if not torch.equal(torch.get_rng_state(), _state_after_seeding(seed)):
        cell.tally.drawn.add(sample.number)
        cell.judge.drew()
    if is_further and not _is_sound(cell, sample, (expected, expected_gradients)):
        return None
    given: list[torch.Tensor] = []

    def differentiate(outputs: Any, inputs: Any, cotangents_: Any) -> Any:
        given.extend(cotangents_)
        return cell.watches.gradients(outputs, inputs, cotangents_)

    try:
        with cell.watches.together():
            actual, actual_gradients = kind.run(cell.info, cell.watches.execute, differentiate, device, seed)
    except Exception:
        if is_further and reference_refuses(cell.info, sample):
            return None
        raise
    cell.judge.metadata(sample, actual, expected, with_equal_strides(device, host))
    cell.tally.compared += 1
    if not cell.values or not cell.selects(sample) or _drew_differently(cell, sample, actual, expected):
        return None
    device_run, host_run = (actual, actual_gradients), (expected, expected_gradients)
    due = cotangents(differentiable(sample, expected), seed, kind.arrange)
    judge_values(cell, sample, device_run, host_run, due, with_oracle=with_oracle)
    for position, (after, before) in enumerate(zip(given, due, strict=False)):
        kept = same_bits(plain(after), plain(before))
        cell.judge.claim(sample, kept, f"the backward changed the gradient that it got for output {position}")
    return None


def _is_sound(cell: Cell, sample: Call, host_run: tuple[Any, list[Any]]) -> bool:
    """Return whether PyTorch's CPU gives the same result and gradients for these tensors as for contiguous ones."""
    kind, seed = sample.backward, sample.seed
    if facts(cell.info.name).by_memory or (kind == PLAIN and is_dense(sample)):
        return True  # in the latter, it would be the same call once more
    # The values of the cotangents stay; their arrangement does not.
    dense_kind = Pass(lambda cotangent: kind.arrange(cotangent).contiguous())
    usual = dense_of(sample)
    # Samples that differ in their arrangement alone have one dense form.
    run = functools.partial(_dense_run, cell, usual, dense_kind, seed)
    due = usual.found_out(("dense gradients", cell.info.op, kind.arrange, seed), run)
    if due is None:  # the host supports this arrangement alone; there is nothing to compare it with
        return True
    oracle = Oracle(
        lambda wide, change: _values(wide, dense_kind.run(cell.info, call, host_gradients, wide, seed, change)), sample
    )
    n = max((float(tensor.numel()) for tensor in sample.tensors), default=1.0)
    return all(
        compare(plain(found), plain(wanted), functools.partial(oracle.leaf, position), cell.op_class, n).right
        for position, (found, wanted) in enumerate(zip(_values(sample, host_run), due, strict=True))
        if isinstance(found, torch.Tensor) and isinstance(wanted, torch.Tensor)
    )


def _dense_run(cell: Cell, usual: Call, kind: Pass, seed: int) -> list[Any] | None:
    """Return the host's result and gradients for contiguous tensors, or None if it refuses them."""
    try:
        return _values(usual, kind.run(cell.info, call, host_gradients, usual.on(HOST), seed))
    except Exception:  # each operator refuses in its own way
        return None


def _values(sample: Call, run: Any) -> list[Any]:
    """Return the results of a run as they are compared, and its gradients."""
    result, gradients = run
    return [*processed(sample, result), *gradients]


def _seed(sample: Call) -> int:
    """Return the seed of a pass, which is drawn once for all samples with the same numbers."""
    return usual_of(sample).found_out("seed", lambda: int(torch.randint(2**31, ())))


def _state_after_seeding(seed: int) -> torch.Tensor:
    """Return the state of a CPU generator with this seed, before any draw."""
    return torch.Generator().manual_seed(seed).get_state()


def _device_refusal(cell: Cell, device: Call, seed: int) -> Exception | None:
    """Return the exception with which the device refuses forward and backward; None if it does neither."""
    try:
        PLAIN.run(cell.info, execution.execute, execution.gradients, device, seed)
    except Exception as refusal:  # the caller raises it unless another sample can be compared
        return refusal
    return None


def judge_values(
    cell: Cell,
    sample: Call,
    device_run: tuple[Any, list[Any]],
    host_run: tuple[Any, list[Any]],
    given: list[torch.Tensor],
    *,
    with_oracle: bool = False,
) -> None:
    """Compare results and gradients; ``given`` are the cotangents of the backward, on the host."""
    info, seed, kind = cell.info, sample.seed, sample.backward
    (actual, actual_gradients), (expected, expected_gradients) = device_run, host_run
    forward = of_forward(info, sample)
    backward = of_gradients(
        info, sample, lambda wide, change: kind.run(info, call, host_gradients, wide, seed, change)[1], given
    )
    n = cell.judge.length(sample, expected)
    if not cell.judge.result(sample, actual, expected, forward, n):
        return
    found, due = len(actual_gradients), len(expected_gradients)
    cell.judge.claim(sample, found == due, f"{found} gradients, expected {due}")
    outputs = sum(tensor.numel() for tensor in tensors(expected))
    length = max(n, float(outputs) ** 0.5)  # it sums over all outputs
    own = cell.of_class(OpClass.ITERATIVE) if facts(info.name).inverts else cell
    of_sums = own.of_class(OF_SUMS.get(own.op_class, own.op_class))
    for i, (gradient, expected_gradient) in enumerate(zip(actual_gradients, expected_gradients, strict=True)):
        part = f"gradient of input {i}"
        if i == 0 and (chosen := _gradient_of_choice(info, sample, actual, expected, given)) is not None:
            cell.judge.tensor(sample, plain(gradient), chosen, lambda: None, length, part=part)
            continue
        if i == 0 and gradient is not None and expected_gradient is not None:
            expected_gradient = choices.settled_gradient(info, sample, gradient, expected_gradient)
        if expected_gradient is not None and expected_gradient.numel() < outputs:
            _judge_gradient(of_sums, sample, gradient, expected_gradient, backward.rounding(), i, length)
            continue
        # A complex derivative is composed of several real ones.
        by = of_sums if expected_gradient is not None and expected_gradient.is_complex() else own
        _judge_gradient(by, sample, gradient, expected_gradient, backward, i, length)
    if with_oracle:
        cell.judge.against_oracle(sample, expected_gradients, backward, n, raw=True)


def _judge_gradient(
    cell: Cell, sample: Call, actual: Any, expected: Any, oracle: Oracle, position: int, n: float
) -> None:
    """Judge one gradient: whether there is one, its metadata and its values. ``n`` is the length of its sums."""
    part = f"gradient of input {position}"
    if expected is None:
        cell.judge.claim(sample, actual is None, "a gradient where PyTorch has none", part)
        return
    cell.judge.claim(sample, actual is not None, "no gradient", part)
    # Autograd does not define the strides of gradients.
    cell.judge.metadata(sample, actual.detach(), expected.detach(), part=part, own=False)
    cell.judge.leaf(sample, actual, expected, oracle, position, n, part=part)


def _gradient_of_choice(
    info: Any, sample: Call, actual: Any, expected: Any, given: list[torch.Tensor]
) -> torch.Tensor | None:
    """Return the gradient for a device that has chosen other elements than the host, among equal ones; else None."""
    chosen, usual = tensors(leaves(actual)), tensors(leaves(expected))
    if len(chosen) < 2 or len(given) != 1 or same_bits(plain(chosen[1]), plain(usual[1])):
        return None
    return choices.gradient(info, sample, chosen, given[0])


def _drew_differently(cell: Cell, sample: Call, actual: Any, expected: Any) -> bool:
    """Return whether the operator is random and drew other numbers than the host.

    Then only repeatability can be checked: the same seed has to give the same result and gradients.
    """
    if all(same_bits(plain(a), plain(b)) for a, b in zip(tensors(actual), tensors(expected), strict=True)):
        return False
    execution.reseed(sample.seed, HOST)
    state = torch.get_rng_state()
    perform(call, cell.info, sample.on(HOST))
    # An operator that draws nothing has wrong values, which the caller compares.
    if torch.equal(state, torch.get_rng_state()):
        return False
    first, again = (
        PLAIN.run(cell.info, execution.execute, execution.gradients, cell.on(sample), sample.seed) for _ in range(2)
    )
    same = repeats(leaves(list(first)), leaves(list(again)), of_one_backward=True)
    if not same:
        execution.require_seed(cell.device)
    cell.judge.claim(sample, same, "the same seed gave different gradients")
    cell.judge.random_result(actual, expected)
    return True
