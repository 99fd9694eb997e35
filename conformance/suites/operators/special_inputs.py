"""Special values in the inputs of every operator: NaN, infinities, subnormals, negative zeros, large integers.

``tiers.py`` has them for functions of one and two tensors. Here every operator gets them, in one tensor at a time.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import replace

import torch

from conformance.numerics.budgets import OpClass
from conformance.numerics.compare import Exact, plain, same_bits, widen, without_nan
from conformance.numerics.trees import leaves, mapped, tensors

from . import choices, execution, forms, large, sampling, special_values, tiers, tiny_inputs
from .execution import HOST, OperatorSample, call, host_gradients
from .oracle import Oracle, of_forward
from .passes import Pass
from .sampling import limits
from .special_values import FACTORS, Change, is_real, of_values

#: The pass of an ordinary backward.
_PLAIN = Pass()
#: Elements of a long sample of wide integers.
_LONG = 4099
#: Relative and absolute tolerance where only other numbers count.
_GROSS = (1e-3, 1e-5)
#: Results of this size may have overflowed.
_OVERFLOW = {torch.int32: 2.0**30, torch.int64: 2.0**62}
#: Finite numbers in the places of special ones. A result that is equal for both does not depend on these places: one
#: is large and one small, so that a median depends on them.
_FINITE = (20.0, -30.0)
#: Stands for infinity where the host has NaN, as inf / (1 + inf) is: a device that gives the limit is right.
_FAR = 300.0
#: Relative difference of two results in float64 that is nothing but rounding.
_ROUNDED = 1e-9
#: Stands in the place of a tensor; no number that the database has. Such samples count from 7000 on.
_A_NUMBER, _NUMBERED = 0.7, 7000


def check(info, judge, samples: list[OperatorSample], dtype: torch.dtype) -> None:
    """Compare results for special values in each tensor of some samples with the host's."""
    has_samples = dtype.is_floating_point and tiers.has_special_values(info)
    if not judge.values or (dtype.is_floating_point and info.name in limits().special_inputs.undefined):
        return
    if judge.op_class is OpClass.ITERATIVE:
        _check_solved(info, judge, samples, dtype)
        return
    if not (dtype.is_floating_point or dtype in FACTORS):
        return
    if info.name == "item":
        _check_numbers(info, judge, dtype)
        return
    chosen = unlike(info, judge, samples)
    tiny_inputs.check(info, judge, chosen)
    if dtype.is_floating_point:
        for sample in chosen[:1]:
            _check_ignored(info, judge, sample)
    for sample in chosen:
        if has_samples and tiers.is_usual(info, sample, dtype):
            continue
        changes = (
            special_values.integers(info, sample, dtype)
            if dtype in FACTORS
            else special_values.floats(info, judge, sample)
        )
        for change in changes:
            _compare(info, judge, change)


def _check_numbers(info, judge, dtype: torch.dtype) -> None:
    """Check that one element of a tensor becomes the same number in Python, bit for bit."""
    tiny = torch.finfo(dtype).smallest_normal / 8 if judge.check.subnormals and dtype.is_floating_point else 1.0
    odd = (1.2345678, -0.0, float("nan"), torch.inf, -torch.inf, tiny)
    wide = torch.float64 if dtype.is_floating_point else dtype
    for value in odd if dtype.is_floating_point else (special_values.MOST, *FACTORS[dtype]):
        given = torch.tensor(value, dtype=dtype)
        found = execution.execute(info.op, OperatorSample(_NUMBERED, given).on(judge.device))
        same = type(found) is type(value) and same_bits(*(torch.tensor(n, dtype=wide) for n in (found, given.item())))
        judge.check.that(same, f"item() of {given.item()} gives {found!r}")


def _check_solved(info, judge, samples: list[OperatorSample], dtype: torch.dtype) -> None:
    """Compare results for NaN and infinities in the inputs of linear algebra that no iteration reads.

    Iterations may end the process for a matrix with NaN. An elimination ends, and an infinity has no defined pivot.
    """
    table = limits().special_inputs
    in_products, eliminated = (part.get(info.name, ()) for part in (table.in_products, table.eliminated))
    for sample in unlike(info, judge, samples) if dtype.is_floating_point else ():
        places = range(limits().special_inputs.tensors) if sampling.is_deep() else (*in_products, *eliminated)
        tiny_inputs.check_losses(info, judge, sample, places)
        for number, tensor in of_values(sample):
            if number in table.factorised.get(info.name, ()):
                _check_is_seen(info, judge, sample, number, tensor)
            for change in (
                special_values.not_finite(sample, number, tensor, special_values.KINDS) if number in in_products else ()
            ):
                _compare(info, judge, change)
            for change in special_values.not_finite(sample, number, tensor, ("NaN",)) if number in eliminated else ():
                # A library may find no pivot in such a matrix, and say that it is singular.
                _compare(info, judge, replace(change, may_refuse=True, of_nan=False))
            if number in table.triangular.get(info.name, ()):
                _compare(info, judge, special_values.rare(sample, number, tensor, -torch.inf))


def _check_is_seen(info, judge, sample: OperatorSample, number: int, tensor: torch.Tensor) -> None:
    """Check that a matrix with NaN or infinity in its first column is refused, or its result is not finite.

    Both triangles contain the first element; below it, the largest number of the dtype has a finite factorisation. A
    case of which the host makes finite results does not count. Which elements are NaN depends on the algorithm.
    """
    usual = tiny_inputs.outputs(info, call, sample.on(HOST))
    if not usual or not _are_finite(usual):
        return
    rows = (0, 1) if tensor.shape[-2] > 1 else (0,)
    for value, row in itertools.product((torch.nan, torch.inf), rows):
        flat = tensor.detach().clone(memory_format=torch.contiguous_format).view(-1)
        flat[row * tensor.shape[-1]] = value
        changed = sample.with_tensor(sample.tensors[number], flat.view(tensor.shape))
        due = tiny_inputs.outputs(info, call, changed.on(HOST))
        if due is not None and _are_finite(due):
            continue
        for name, found in tiny_inputs.in_forms(info, judge, changed, usual if due is None else due):
            lost = bool(found) and _are_finite(found)
            judge.check.that(
                not lost,
                f"{sample}, {value} in row {row} of input {number}{name}: all numbers of the result are finite",
            )


def _are_finite(outputs: list[torch.Tensor]) -> bool:
    return all(bool(plain(leaf).isfinite().all()) for leaf in outputs)


def check_long_integers(info, judge, samples: list[OperatorSample], dtype: torch.dtype) -> None:
    """Compare results of long samples for integers that float32 does not hold, whose sums 32 bits do not hold."""
    if dtype not in FACTORS or not judge.values or info.name in limits().special_inputs.undefined:
        return
    for sample in large.grown(info, samples, dtype, _LONG):
        for change in special_values.integers(info, sample, dtype):
            _compare(info, judge, replace(change, in_forms=False))


def check_long_floats(info, judge, samples: list[OperatorSample], dtype: torch.dtype) -> None:
    """Compare results of long samples for NaN and infinities: a kernel for long rows is another one."""
    if dtype is not torch.float32 or judge.op_class is OpClass.ITERATIVE or not judge.values:
        return
    for sample in (
        large.grown(info, samples, dtype, _LONG) if info.name not in limits().special_inputs.undefined else ()
    ):
        for number, tensor in itertools.islice(of_values(sample), 1):
            for value in (torch.nan, torch.inf, -torch.inf):
                _compare(info, judge, replace(special_values.rare(sample, number, tensor, value), in_forms=False))


def check_kernel(kernel, judge, sample: OperatorSample) -> None:
    """Compare results of a kernel that is no operator of the database for special values in each tensor."""
    for number, tensor in of_values(sample):
        for change in special_values.not_finite(sample, number, tensor):
            _compare(kernel, judge, replace(change, kinks=change.of_nan))
        if judge.check.subnormals and tensor.dtype is torch.float32:
            # One side of a kink begins with them.
            name = f"subnormal numbers in input {number}"
            _compare(
                kernel,
                judge,
                Change(name, special_values.with_subnormals(kernel, sample, tensor), gross=True),
            )


def unlike(
    info,
    judge,
    samples: list[OperatorSample],
    most: int | None = None,
    *,
    by_dims: bool = False,
    draws: bool = False,
) -> list[OperatorSample]:
    """Return some samples with other kinds of arguments each: the largest, those without a factor 0.0 first.

    None of them draws random numbers, except with ``draws``. With ``by_dims``, and in the deep tier, an input with
    another number of dimensions is of another kind.
    """
    most, by_dims = most or limits().special_inputs.samples, by_dims or sampling.is_deep()
    found: dict[tuple, OperatorSample] = {}
    for sample in sorted(samples, key=_by_use, reverse=True):
        fits = draws or sample.number not in judge.drawn
        fits &= sample.process is None or info.name in {*limits().factors.moved_by, *limits().factors.of_signs}
        if fits and all(tensor.layout is torch.strided and tensor.numel() for tensor in sample.tensors):
            dims = sample.input.dim() if by_dims and isinstance(sample.input, torch.Tensor) else 0
            found.setdefault((dims, *_kinds(sample)), sample)
    chosen = list(found.values())[:most]
    known = {_kinds(sample) for sample in found.values() if sampling.elements(sample) > 1}
    numbers = _with_a_number(info, chosen[0], known) if chosen else None
    scalars = limits().special_inputs.scalars.get(info.name)
    if chosen and scalars and chosen[0].tensors[0].is_floating_point():
        tensor = torch.tensor(_A_NUMBER, dtype=chosen[0].tensors[0].dtype)
        numbers = replace(chosen[0].with_argument(scalars, tensor), number=chosen[0].number + _NUMBERED)
    return [*chosen, numbers] if numbers is not None else chosen


def _by_use(sample: OperatorSample) -> tuple[bool, int]:
    """Return whether no number is 0.0, a factor for which nothing shows, and how many elements there are."""
    numbers = [leaf for leaf in leaves([sample.args, sample.kwargs]) if type(leaf) is float]
    return 0.0 not in numbers, sampling.elements(sample)


def _with_a_number(info, sample: OperatorSample, known: set[tuple]) -> OperatorSample | None:
    """Return the sample with a number in the place of its last tensor of values.

    None if there already is such a sample among the ``known`` kinds, or if the host takes no number there.

    That is another overload of most functions. The database has it for few of them, or for one element alone.
    """
    given = [(place, value) for place, value in enumerate(sample.args) if isinstance(value, torch.Tensor)]
    places = [place for place, value in given if is_real(value)]
    numbers: tuple[float, ...] = (_A_NUMBER, -_A_NUMBER)
    if not places and isinstance(sample.input, torch.Tensor) and sample.input.dtype in FACTORS:
        places, numbers = [place for place, value in given if value.dtype is sample.input.dtype], (1, 2)
    if not places:
        return None
    changed, other = (
        replace(sample.with_argument(places[-1], number), number=sample.number + _NUMBERED) for number in numbers
    )
    if _kinds(changed) in known:
        return None
    first, second = (_tensor_or_none(info, numbered) for numbered in (changed, other))
    # A number that does not count stands for something else: ``to`` takes a tensor for its dtype.
    return None if first is None or second is None or torch.equal(first, second) else changed


def _tensor_or_none(info, sample: OperatorSample) -> torch.Tensor | None:
    """Return the host's result if it is one tensor."""
    try:
        made = call(info.op, sample.on(HOST))
    except Exception:  # each operator refuses in its own way
        return None
    return plain(made) if isinstance(made, torch.Tensor) and made.layout is torch.strided else None


def _kinds(sample: OperatorSample) -> tuple:
    """Return the types of the arguments and their names: samples with others may reach another overload."""
    arguments = [type(leaf) for leaf in leaves([sample.input, *sample.args])]
    return (*arguments, *sample.kwargs, *(value for value in sample.kwargs.values() if type(value) is bool))


# --- operands without an effect ---------------------------------------------------------------------------------------


def _check_ignored(info, judge, sample: OperatorSample) -> None:
    """Compare results for NaN in an input that ``beta=0`` ignores, by the documentation of torch.addmm and its kin."""
    if not _has_beta(info) or not isinstance(sample.input, torch.Tensor) or not is_real(sample.input):
        return
    scaled = replace(sample, kwargs={**sample.kwargs, "beta": 0})
    ignored = special_values.replaced(
        scaled, sample.input, torch.full_like(sample.input, float("nan"), requires_grad=False)
    )
    if all(bool(plain(leaf).isfinite().all()) for leaf in tensors(leaves(call(info.op, ignored.on(HOST))))):
        _compare(info, judge, Change("NaN in the input that beta=0 ignores", ignored, in_forms=True))


def _has_beta(info) -> bool:
    schemas = torch._C._jit_get_schemas_for_operator(f"aten::{info.aten_name or info.name}")
    return any({"alpha", "beta"} <= {argument.name for argument in schema.arguments} for schema in schemas)


def _without_overflow(info, sample: OperatorSample, position: int, found: torch.Tensor, due: torch.Tensor):
    """Return the device's output with the host's elements where the result may not fit the dtype."""

    def wide(leaf):
        return leaf.double() if isinstance(leaf, torch.Tensor) and leaf.dtype in FACTORS else leaf

    try:
        result = leaves(call(info.op, sample.with_arguments(mapped(sample.arguments, wide))))[position]
    except Exception:  # the operator takes no floating-point numbers: it has no overflow
        return found
    if result.shape != due.shape or not result.is_floating_point():
        return found
    return torch.where(result.abs() >= _OVERFLOW[due.dtype], due, found)


# --- comparison -------------------------------------------------------------------------------------------------------


def _compare(info, judge, change: Change) -> None:
    state, host = torch.get_rng_state(), change.sample.on(HOST)
    try:
        expected = call(info.op, host)
    except Exception:  # such values are outside of the operator's domain
        return
    if not torch.equal(state, torch.get_rng_state()):
        return
    try:
        found = execution.execute(info.op, change.sample.on(judge.device))
    except RuntimeError:
        if not change.may_refuse:
            raise
        judge.check.metric("special_inputs", f"refused: {change.name}")
        return
    _compare_form(info, judge, change, expected, found)
    for name, run in forms.others(info, expected) if change.in_forms else ():
        try:
            expected = run(call, change.sample.on(HOST))
        except Exception:  # the host has no such form of this call
            continue
        given = replace(change, name=f"{change.name}, {name}")
        _compare_form(info, judge, given, expected, run(execution.execute, change.sample.on(judge.device)))


def _compare_form(info, judge, change: Change, expected, actual) -> None:
    found, due = leaves(actual), leaves(expected)
    if len(found) != len(due):
        return  # the plain results show it
    due = choices.settled(info, change.sample, found, due)
    oracle, n = of_forward(info, change.sample), judge.length(change.sample, expected)
    for position, (actual, wanted) in enumerate(zip(found, due, strict=True)):
        label = f"{change}, output {position}"
        if not _comparable(actual, wanted):
            _check_size(info, judge, change, label, actual, wanted)
            continue
        ours, theirs = plain(actual), plain(wanted)
        if change.moves:
            _compare_bits(judge, label, ours, theirs)
        elif change.gross and theirs.is_floating_point():
            both = ours.isfinite() & theirs.isfinite()
            other = both & ~torch.isclose(ours, theirs, *_GROSS)
            judge.check.that(not other.any(), f"{label}: {int(other.sum())} elements are other numbers than the host's")
        elif theirs.dtype in FACTORS:
            # An integer result of special floating-point numbers, such as a position, has a standard for few operators.
            if info.name in limits().special_inputs.positions:
                judge.tensor(label, ours, theirs, lambda: None, n)
            elif not any(tensor.is_floating_point() for tensor in change.sample.tensors):
                ours = _without_overflow(info, change.sample, position, ours, theirs)
                judge.tensor(label, ours, theirs, lambda: None, n)
        else:
            if change.finite is not None:
                ours = _in_question(info, change, position, ours, theirs)
            judge.tensor(label, ours, theirs, functools.partial(_exact, oracle, position), n)


def _has_nan(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and bool(plain(tensor).isnan().any())


def _in_question(info, change: Change, position: int, ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    """Return the device's output with the host's elements where special values leave the result open."""
    both = ours.isfinite() & theirs.isfinite()
    with_number = functools.partial(_forward, info, change, position)
    if change.kinks and not torch.equal(ours[both], theirs[both]):
        both &= ~_depend(with_number, both.shape)
    return torch.where(both, ours, _with_losses_alone(ours, theirs, with_number, of_nan=change.of_nan))


def _check_size(info, judge, change: Change, label: str, actual, wanted) -> None:
    """Check the number of positions, where they have a standard, and that NaN is among results of another size.

    How many of several NaN are equal to each other is open. Of other operators, the plain results show the size.
    """
    if not (isinstance(actual, torch.Tensor) and isinstance(wanted, torch.Tensor)):
        return
    if info.name in limits().special_inputs.positions:
        judge.check.equal(tuple(actual.shape), tuple(wanted.shape), f"{label}: the shape")
    if change.of_nan and _has_nan(wanted):
        judge.check.that(_has_nan(actual), f"{label}: no element is NaN")


def _exact(oracle: Oracle, position: int) -> Exact | None:
    """Return the exact value of an output; attention to one position rounds nothing on the host, by chance."""
    exact = oracle.leaf(position)
    return None if exact is None else replace(exact, rounds=True)


def _comparable(actual, wanted) -> bool:
    """Return whether both are tensors of one shape and dtype; if not, the plain results show it."""
    if not (isinstance(actual, torch.Tensor) and isinstance(wanted, torch.Tensor)):
        return False
    return (actual.shape, actual.dtype) == (wanted.shape, wanted.dtype) and wanted.layout is torch.strided


def _compare_bits(judge, label: str, actual: torch.Tensor, wanted: torch.Tensor) -> None:
    """Check that all bits are the host's; one NaN is as good as another."""
    same = torch.equal(actual.isnan(), wanted.isnan()) and same_bits(without_nan(actual, 1.0), without_nan(wanted, 1.0))
    judge.check.that(same, f"{label}: the operator moves elements, and bits of some have changed")


def _with_losses_alone(actual: torch.Tensor, wanted: torch.Tensor, with_number, *, of_nan: bool) -> torch.Tensor:
    """Return the host's output with the device's elements where these lost a special value.

    A device may give NaN where the host does not: a convolution by transforms spreads it. It may also leave out a
    product with zero. Then the element does not depend on the special value: two finite numbers give the same result.
    """
    if wanted.dtype is torch.bool:
        return actual
    # No number and no infinity comes from NaN; but an infinity less another may be either.
    lost = wanted.isnan() & ~actual.isnan() if of_nan else actual.isfinite() & ~wanted.isfinite()
    if bool(lost.any()):
        lost &= _depend(with_number, lost.shape)
    if not of_nan and bool((lost & wanted.isnan()).any()):
        limit = with_number(_FAR)
        if isinstance(limit, torch.Tensor) and limit.shape == lost.shape:
            lost &= ~(wanted.isnan() & torch.isclose(widen(actual), widen(limit), *_GROSS))
    return torch.where(lost, actual, wanted)


def _depend(with_number, shape: torch.Size) -> torch.Tensor:
    """Return which elements depend on the places of special values: two finite numbers there give other results."""
    first, second = (with_number(number) for number in _FINITE)
    if not _comparable(first, second) or first.shape != shape:
        return torch.zeros(shape, dtype=torch.bool)
    # An algorithm over several columns rounds each of them otherwise.
    return ~torch.isclose(first, second, rtol=_ROUNDED, atol=0.0)


def _forward(info, change: Change, position: int, number: float):
    assert change.finite is not None
    try:
        return leaves(call(info.op, change.finite(number)[0].wide(_same)))[position]
    except Exception:  # the number is outside of the operator's domain
        return None


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


# --- gradients --------------------------------------------------------------------------------------------------------


def check_gradients(info, judge, sample: OperatorSample, seed: int) -> None:
    """Compare gradients for NaN and infinities in each tensor and in the cotangents with the host's."""
    if sample.process is not None or choices.has_choice(info) or judge.op_class is OpClass.ITERATIVE:
        return
    for change in _in_training(sample):
        _compare_gradients(info, judge, change, seed)


def check_equal_operands(info, judge, samples: list[OperatorSample], dtype: torch.dtype, seed: int) -> None:
    """Check that gradients are finite where the host's are, for equal operands and for operands of zeros.

    A distance or a norm has a kink there. Which of its gradients is right is open, but NaN is none of them.
    """
    if dtype is not torch.float32 or choices.has_choice(info) or judge.op_class is OpClass.ITERATIVE:
        return
    for sample in samples:
        for name, changed in _with_equal_operands(sample) if sample.process is None else ():
            _check_finite(info, judge, f"{sample}, {name}", changed, seed)


def _check_finite(info, judge, label: str, sample: OperatorSample, seed: int) -> None:
    try:
        due = _PLAIN.run(info, call, host_gradients, sample.on(HOST), seed)[1]
    except Exception:  # such values are outside of the operator's domain
        return
    found = _PLAIN.run(info, execution.execute, execution.gradients, sample.on(judge.device), seed)[1]
    for position, (actual, wanted) in enumerate(zip(found, due, strict=True)):
        if _comparable(actual, wanted):
            lost = plain(wanted).isfinite() & ~plain(actual).isfinite()
            what = f"{label}, gradient of input {position}: {int(lost.sum())} numbers are not finite"
            judge.check.that(not lost.any(), what)


def _with_equal_operands(sample: OperatorSample) -> Iterator[tuple[str, OperatorSample]]:
    first = sample.input
    for number, tensor in of_values(sample):
        zeros = torch.zeros_like(tensor, requires_grad=False)
        yield f"zeros in input {number}", special_values.replaced(sample, tensor, zeros)
        if tensor is first or not isinstance(first, torch.Tensor) or not is_real(first):
            continue
        if first.dtype is tensor.dtype and first.dim() == tensor.dim() > 0 and first.shape[-1] == tensor.shape[-1]:
            # Rows in turn: as many as the operand has.
            equal = first.detach().expand(*tensor.shape[:-2], *first.shape[-2:]) if _fits(first, tensor) else None
            if equal is not None and equal.dim() > 1:
                rows = torch.arange(tensor.shape[-2]) % equal.shape[-2]
                equal = equal.index_select(-2, rows)
            if equal is not None:
                yield f"input {number} equal to the first", special_values.replaced(sample, tensor, equal.clone())


def _fits(first: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Return whether the leading dimensions of the first tensor are those of the other one, or 1; none is empty."""
    pairs = zip(first.shape[:-2], tensor.shape[:-2], strict=True)
    return first.numel() > 0 and all(own in (1, other) for own, other in pairs)


def _in_training(sample: OperatorSample) -> Iterator[Change]:
    for number, tensor in of_values(sample):
        yield from special_values.not_finite(sample, number, tensor)
    for name, values in special_values.NOT_FINITE.items():

        def given(value: float | None, values=values) -> Pass:
            return Pass(
                lambda cotangent: special_values.spread(cotangent, values, value) if is_real(cotangent) else cotangent
            )

        finite = lambda value, given=given: (sample, given(value))  # noqa: E731
        yield Change(f"{name} in the cotangents", sample, finite, kind=given(None), of_nan=name == "NaN")


def _compare_gradients(info, judge, change: Change, seed: int) -> None:
    state = torch.Generator().manual_seed(seed).get_state()
    try:
        expected, due = change.kind.run(info, call, host_gradients, change.sample.on(HOST), seed)
    except Exception:  # such values are outside of the operator's domain
        return
    if not torch.equal(state, torch.get_rng_state()):
        return
    device = change.sample.on(judge.device)
    _, found = change.kind.run(info, execution.execute, execution.gradients, device, seed)
    n = judge.length(change.sample, expected)
    for position, (actual, wanted) in enumerate(zip(found, due, strict=True)):
        if _comparable(actual, wanted):
            ours, theirs = plain(actual), plain(wanted)
            with_number = functools.partial(_gradient, info, change, position, seed)
            ours = _with_losses_alone(ours, theirs, with_number, of_nan=change.of_nan)
            # Float64 may have no special value there, where float32 overflows between its steps.
            judge.tensor(f"{change}, gradient of input {position}", ours, theirs, lambda: None, n)


def _gradient(info, change: Change, position: int, seed: int, number: float):
    assert change.finite is not None
    sample, kind = change.finite(number)
    try:
        return kind.run(info, call, host_gradients, sample.wide(_same), seed)[1][position]
    except Exception:  # the number is outside of the operator's domain
        return None
