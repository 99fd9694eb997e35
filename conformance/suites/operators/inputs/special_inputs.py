"""Special values in the inputs of every operator: NaN, infinities, subnormals, negative zeros, large integers.

``tiers.py`` has them for functions of one and two tensors. Here every operator gets them, in one tensor at a time.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from conformance.accelerators.capabilities import Mode
from conformance.numerics.budgets import OpClass
from conformance.numerics.compare import Exact, plain, same_bits, widen, without_nan
from conformance.numerics.trees import leaves, mapped, tensors
from conformance.suites.operators.calls import execution
from conformance.suites.operators.calls.calls import HOST, Call
from conformance.suites.operators.calls.execution import call, host_call, host_gradients, perform
from conformance.suites.operators.calls.facts import argument_facts, facts
from conformance.suites.operators.calls.passes import PLAIN, Pass
from conformance.suites.operators.judge import choices
from conformance.suites.operators.judge.aspects import Aspect
from conformance.suites.operators.judge.cells import Cell
from conformance.suites.operators.judge.oracle import Oracle, of_forward

from . import forms, large, model_sizes, settings, special_values, tiers, tiny_inputs
from .comparing import check_call
from .families import Stage, check, source
from .kinds import unlike
from .special_values import FACTORS, Change, is_real, of_values

_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
_FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
#: Elements of a long sample of wide integers, or of special values.
_LONG = 8209
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
#: Orders of a norm or of a distance. At two points that are equal, the derivatives of most are no quotients.
_ORDERS = (1.0, 2.0, 3.0, float("inf"))
#: Number of the samples of ``item``.
_OF_ITEM = 7000
#: Numbers of samples of different numbers with NaN, and the largest of these.
_OF_UNIQUE, _LARGEST_OF_UNIQUE = 10080, 15


def _compare(cell: Cell, change: Change) -> None:
    """Compare a call with special values, and its forms, with the host's."""
    given = change.call
    usual = host_call(cell.info.op, given)
    if not usual.comparable:
        return  # such values are outside of the operator's domain, or cannot be compared
    try:
        found = execution.execute(cell.info.op, cell.on(given))
    except RuntimeError:
        if not change.may_refuse:
            raise
        cell.check.metric("special_inputs", f"refused: {change.name}")
        return
    _compare_form(cell, change, given, usual.value, found)
    for form in forms.others(cell.info, given, usual.value) if change.in_forms else ():
        try:
            expected = perform(call, cell.info, form.on(HOST))
        except Exception:  # the host has no such form of this call
            continue
        _compare_form(cell, change, form, expected, perform(execution.execute, cell.info, cell.on(form)))


@source(Mode.INFERENCE, _compare)
def special_inputs(cell: Cell) -> Iterator[Change]:
    """Yield some samples with special values in each tensor in turn."""
    if not _takes_special_values(cell) or cell.op_class is OpClass.ITERATIVE or cell.info.name == "item":
        return
    is_float = cell.dtype.is_floating_point
    has_samples = is_float and tiers.has_special_values(cell.info)
    chosen = unlike(cell, cell.samples)
    if is_float and chosen:
        yield from _ignored(cell.info, chosen[0])
    for sample in chosen:
        if not (has_samples and tiers.is_usual(cell.info, sample, cell.dtype)):
            values = special_values.floats if is_float else special_values.integers
            yield from values(cell, sample)


@check(Mode.INFERENCE)
def tiny_numbers(cell: Cell) -> None:
    """Compare results for subnormal numbers and negative zeros in some samples."""
    if _takes_special_values(cell) and cell.op_class is not OpClass.ITERATIVE and cell.info.name != "item":
        tiny_inputs.check(cell, unlike(cell, cell.samples))


@check(Mode.INFERENCE)
def numbers_in_python(cell: Cell) -> None:
    """Compare the number that ``item`` makes of one element, bit for bit."""
    if cell.info.name == "item" and _takes_special_values(cell):
        _check_numbers(cell)


@check(Mode.INFERENCE)
def solved(cell: Cell) -> None:
    """Compare what linear algebra makes of special values."""
    if cell.op_class is OpClass.ITERATIVE and cell.dtype.is_floating_point and not _is_undefined(cell):
        _check_solved(cell)


def _takes_special_values(cell: Cell) -> bool:
    """Return whether the operator has a defined result for special values in the dtype of the cell."""
    return not _is_undefined(cell) and (cell.dtype.is_floating_point or cell.dtype in FACTORS)


def _is_undefined(cell: Cell) -> bool:
    """Return whether no document says what the operator returns for NaN and infinities."""
    return cell.dtype.is_floating_point and facts(cell.info.name).open_for_specials


def _check_numbers(cell: Cell) -> None:
    """Check that one element of a tensor becomes the same number in Python, bit for bit."""
    dtype = cell.dtype
    tiny = torch.finfo(dtype).smallest_normal / 8 if cell.check.subnormals and dtype.is_floating_point else 1.0
    odd = (1.2345678, -0.0, float("nan"), torch.inf, -torch.inf, tiny)
    wide = torch.float64 if dtype.is_floating_point else dtype
    for value in odd if dtype.is_floating_point else (special_values.MOST, *FACTORS[dtype]):
        given = Call(_OF_ITEM, torch.tensor(value, dtype=dtype), change=f"the number {value}")
        found = execution.execute(cell.info.op, cell.on(given))
        same = type(found) is type(value) and same_bits(
            *(torch.tensor(n, dtype=wide) for n in (found, given.input.item()))
        )
        cell.judge.claim(given, same, f"item() gives {found!r}")


def _check_solved(cell: Cell) -> None:
    """Compare results for NaN and infinities in the inputs of linear algebra that no iteration reads.

    Iterations may end the process for a matrix with NaN. An elimination ends, and an infinity has no defined pivot.
    """
    known = facts(cell.info.name)
    for sample in unlike(cell, cell.samples):
        places = range(cell.work.special_inputs.tensors) if cell.deep else (*known.in_products, *known.eliminated)
        tiny_inputs.check_losses(cell, sample, places)
        for number, tensor in of_values(cell, sample):
            if number in known.factorised:
                _check_is_seen(cell, sample, number, tensor)
            of_products = special_values.KINDS if number in known.in_products else ()
            for change in special_values.not_finite(sample, number, tensor, of_products):
                _compare(cell, change)
            of_elimination = ("NaN",) if number in known.eliminated else ()
            for change in special_values.not_finite(sample, number, tensor, of_elimination):
                # A library may find no pivot in such a matrix, and say that it is singular.
                _compare(cell, replace(change, may_refuse=True, of_nan=False))
            if number in known.triangular:
                _compare(cell, special_values.rare(sample, number, tensor, -torch.inf))


def _check_is_seen(cell: Cell, sample: Call, number: int, tensor: torch.Tensor) -> None:
    """Check that a matrix with NaN or infinity in its first column is refused, or its result is not finite.

    Both triangles contain the first element; below it, the largest number of the dtype has a finite factorisation. A
    case of which the host makes finite results does not count. Which elements are NaN depends on the algorithm.
    """
    usual = tiny_inputs.outputs(cell.info, call, sample.on(HOST))
    if not usual or not _are_finite(usual):
        return
    rows = (0, 1) if tensor.shape[-2] > 1 else (0,)
    for value, row in itertools.product((torch.nan, torch.inf), rows):
        flat = tensor.detach().clone(memory_format=torch.contiguous_format).view(-1)
        flat[row * tensor.shape[-1]] = value
        changed = sample.with_tensor(sample.tensors[number], flat.view(tensor.shape))
        changed = changed.named(change=f"{value} in row {row} of input {number}")
        due = tiny_inputs.outputs(cell.info, call, changed.on(HOST))
        if due is not None and _are_finite(due):
            continue
        for form, found in tiny_inputs.in_forms(cell, changed, usual if due is None else due):
            lost = bool(found) and _are_finite(found)
            cell.judge.claim(form, not lost, "all numbers of the result are finite")


def _are_finite(outputs: list[torch.Tensor]) -> bool:
    """Return whether all outputs have finite numbers only."""
    return all(bool(plain(leaf).isfinite().all()) for leaf in outputs)


@source(Mode.INFERENCE, _compare, stage=Stage.SEVERAL, dtypes=_INTEGERS)
def ends_of_integers(cell: Cell) -> Iterator[Change]:
    """Yield pairs of the smallest, the largest and other integers: a kernel may go through floating point there."""
    for sample in unlike(cell, cell.samples):
        if len(sample.args) == 1 and [tensor.dtype for tensor in sample.tensors] == [cell.dtype] * 2:
            given = special_values.ends(cell.info, sample, cell.dtype)
            if given is not None:
                yield Change("the ends of the dtype in both inputs", given)


@source(Mode.INFERENCE, _compare, stage=Stage.LARGE, dtypes=tuple(FACTORS))
def long_integers(cell: Cell) -> Iterator[Change]:
    """Yield long samples of integers that float32 does not hold, whose sums 32 bits do not hold."""
    if facts(cell.info.name).open_for_specials:
        return
    for sample in large.grown(cell.info, cell.samples, cell.dtype, cell.work.large, _LONG):
        for change in special_values.integers(cell, sample):
            yield replace(change, in_forms=False)


#: Functions of complex numbers whose results are numbers of the dtype for numbers near the largest one.
_OF_LARGE = ("abs", "angle", "div.no_rounding_mode", "log", "log10", "log2", "reciprocal", "rsqrt", "sgn", "sqrt")
#: Numbers from 10330 on are no numbers of other samples.
_NUMBER_OF_LARGE = 10_330


@source(Mode.INFERENCE, check_call, dtypes=(torch.complex64, torch.complex128))
def large_complex(cell: Cell) -> Iterator[Call]:
    """Yield complex numbers whose squares the dtype does not hold, or holds as zero."""
    if cell.info.full_name not in _OF_LARGE:
        return
    limits = torch.finfo(cell.dtype)
    directions = torch.polar(torch.ones(13), torch.arange(13) * 2.4 + 0.3).to(torch.complex128)
    for order, scale in enumerate((limits.max / 4, limits.tiny * 8)):
        given = (directions * scale).to(cell.dtype)
        args = (given.flip(0),) if cell.info.full_name.startswith("div") else ()
        call = Call(_NUMBER_OF_LARGE + order, given, args, source=f"numbers of {scale:.0e}")
        if host_call(cell.info.op, call).finite:
            yield call


@source(Mode.INFERENCE, check_call, stage=Stage.SEVERAL, dtypes=(*_INTEGERS, *_FLOATS), values=True)
def ordered_ends(cell: Cell) -> Iterator[Call]:
    """Yield unlike samples of what orders or selects elements, with the ends of the dtype among them.

    A kernel that orders downwards by the negated numbers has no number for the smallest integer, and one that begins
    with the lowest number finds no place for it.
    """
    known = facts(cell.info.name)
    if not (known.stable or known.gathers or known.selects or known.distinct or known.open_for_repeated):
        return
    limits = (torch.finfo if cell.dtype.is_floating_point else torch.iinfo)(cell.dtype)
    for sample in unlike(cell, cell.samples):
        tensor = sample.input
        if not isinstance(tensor, torch.Tensor) or tensor.dtype is not cell.dtype or tensor.numel() < 2:
            continue
        # The others are unlike, so that only one order is right.
        numbers = (torch.arange(tensor.numel()) * 37 % 101 + 1).to(cell.dtype)
        numbers[torch.arange(len(numbers)) % 5 == 1] = limits.max
        numbers[torch.arange(len(numbers)) % 5 == 3] = limits.min
        numbers[0] = limits.min
        ends = numbers.view(tensor.shape)
        yield replace(sample.with_tensor(tensor, ends), change="the ends of the dtype")


@source(Mode.INFERENCE, _compare, stage=Stage.LARGE, dtypes=(torch.float32,))
def long_floats(cell: Cell) -> Iterator[Change]:
    """Yield long samples with NaN and infinities: a kernel for long rows is another one."""
    if cell.op_class is OpClass.ITERATIVE or facts(cell.info.name).open_for_specials:
        return
    for sample in large.grown(cell.info, cell.samples, cell.dtype, cell.work.large, _LONG):
        for number, tensor in itertools.islice(of_values(cell, sample), 1):
            for value in (torch.nan, torch.inf, -torch.inf):
                yield replace(special_values.rare(sample, number, tensor, value), in_forms=False)


@source(Mode.INFERENCE, _compare, stage=Stage.LARGE, dtypes=(torch.float32,))
def chosen_among_special(cell: Cell) -> Iterator[Change]:
    """Yield the sizes of models with NaN in some rows, for what gives places: it may have a kernel for each size."""
    known = facts(cell.info.name)
    if (known.gathers or known.positions) and not known.open_for_specials:
        for sample in model_sizes.calls(cell, trained=False):
            yield replace(special_values.rare(sample, 0, sample.input, torch.nan), in_forms=False)


@source(Mode.INFERENCE, check_call, dtypes=(torch.float32, torch.float16, torch.bfloat16, torch.float64))
def sorted_with_nan(cell: Cell) -> Iterator[Call]:
    """Yield short and long vectors of which one element is NaN, for different numbers in order: it comes last.

    How often NaN is among them if it stands there more than once is open.
    """
    if cell.info.full_name != "unique":
        return
    asked: tuple[dict[str, bool], ...] = ({}, {"return_inverse": True, "return_counts": True})
    for order, (length, place, named) in enumerate(itertools.product((2, 7, 4099), (0, 1), asked)):
        numbers = model_sizes.whole(length, dtype=cell.dtype, most=_LARGEST_OF_UNIQUE)
        numbers[place] = torch.nan
        yield Call(_OF_UNIQUE + order, numbers, (), {"sorted": True, **named}, source=f"one NaN among {length} numbers")


def check_kernel(cell: Cell, sample: Call) -> None:
    """Compare results of a kernel that is no operator of the database for special values in each tensor."""
    for number, tensor in of_values(cell, sample):
        for change in special_values.not_finite(sample, number, tensor, special_values.kinds_of(cell)):
            _compare(cell, replace(change, kinks=change.of_nan))
        if cell.check.subnormals and tensor.dtype is torch.float32:
            # One side of a kink begins with them.
            name = f"subnormal numbers in input {number}"
            _compare(cell, Change(name, special_values.with_subnormals(cell.info, sample, tensor), gross=True))


# --- operands without an effect ---------------------------------------------------------------------------------------


def _ignored(info: Any, sample: Call) -> Iterator[Change]:
    """Yield the sample with NaN in an input that ``beta=0`` ignores, by the documentation of torch.addmm and others."""
    if not _has_beta(info) or not isinstance(sample.input, torch.Tensor) or not is_real(sample.input):
        return
    scaled = replace(sample, kwargs={**sample.kwargs, "beta": 0})
    ignored = special_values.replaced(
        scaled, sample.input, torch.full_like(sample.input, float("nan"), requires_grad=False)
    )
    if all(bool(plain(leaf).isfinite().all()) for leaf in tensors(leaves(call(info.op, ignored.on(HOST))))):
        yield Change("NaN in the input that beta=0 ignores", ignored, in_forms=True)


def _has_beta(info: Any) -> bool:
    """Return whether the operator multiplies an input by ``beta`` and adds a product that ``alpha`` multiplies."""
    schemas = torch._C._jit_get_schemas_for_operator(f"aten::{info.aten_name or info.name}")
    return any({"alpha", "beta"} <= {argument.name for argument in schema.arguments} for schema in schemas)


def _without_overflow(info: Any, sample: Call, position: int, found: torch.Tensor, due: torch.Tensor) -> torch.Tensor:
    """Return the device's output with the host's elements where the result may not fit the dtype."""

    def wide(leaf: Any) -> Any:
        return leaf.double() if isinstance(leaf, torch.Tensor) and leaf.dtype in FACTORS else leaf

    try:
        result = leaves(call(info.op, sample.with_arguments(mapped(sample.arguments, wide))))[position]
    except Exception:  # the operator takes no floating-point numbers: it has no overflow
        return found
    if result.shape != due.shape or not result.is_floating_point():
        return found
    return torch.where(result.abs() >= _OVERFLOW[due.dtype], due, found)


# --- comparison -------------------------------------------------------------------------------------------------------


def _compare_form(cell: Cell, change: Change, form: Call, expected: Any, actual: Any) -> None:
    """Compare the outputs of one form of a changed call, and the places of elements that it gathers."""
    found, due = leaves(actual), leaves(expected)
    if len(found) != len(due) or not cell.selects(form):
        return  # the plain results show it
    due = choices.settled(cell.info, change.sample, found, due)
    oracle, n = of_forward(cell.info, change.sample), cell.judge.length(change.sample, expected)
    for position, (actual, wanted) in enumerate(zip(found, due, strict=True)):
        if _comparable(actual, wanted):
            exact = functools.partial(_exact, oracle, position)
            _compare_output(cell, change, form, position, plain(actual), plain(wanted), exact, n)
        else:
            _check_size(cell, change, form, f"output {position}", actual, wanted)
    if facts(cell.info.name).gathers and all(_comparable(*pair) for pair in zip(found, due, strict=True)):
        held = choices.are_held(cell.info, form, [plain(leaf) for leaf in found])
        cell.judge.claim(
            form, held, "the elements at the returned places are others, or have one place twice", "output 1"
        )


def _compare_output(
    cell: Cell,
    change: Change,
    form: Call,
    position: int,
    ours: torch.Tensor,
    theirs: torch.Tensor,
    exact: Callable[[], Exact | None],
    n: float,
) -> None:
    """Compare one output by the law of its change: all bits, other numbers alone, or within the error budget."""
    part = f"output {position}"
    if change.moves:
        _compare_bits(cell, form, part, ours, theirs)
    elif change.gross and theirs.is_floating_point():
        both = ours.isfinite() & theirs.isfinite()
        other = both & ~torch.isclose(ours, theirs, *_GROSS)
        said = f"{int(other.sum())} elements are other numbers than the host's"
        cell.judge.claim(form, not other.any(), said, part)
    elif theirs.dtype in FACTORS:
        # An integer result of special floating-point numbers, such as a position, has a standard for few operators.
        if facts(cell.info.name).positions:
            cell.judge.tensor(form, ours, theirs, lambda: None, n, part=part)
        elif not any(tensor.is_floating_point() for tensor in change.sample.tensors):
            ours = _without_overflow(cell.info, change.sample, position, ours, theirs)
            cell.judge.tensor(form, ours, theirs, lambda: None, n, part=part)
    else:
        if change.finite is not None:
            ours = _in_question(cell.info, change, position, ours, theirs)
        cell.judge.tensor(form, ours, theirs, exact, n, part=part)


def _has_nan(tensor: torch.Tensor) -> bool:
    """Return whether a dense tensor has NaN."""
    return tensor.layout is torch.strided and bool(plain(tensor).isnan().any())


def _in_question(info: Any, change: Change, position: int, ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    """Return the device's output with the host's elements where special values leave the result open."""
    both = ours.isfinite() & theirs.isfinite()
    with_number = functools.partial(_forward, info, change, position)
    if change.kinks and not torch.equal(ours[both], theirs[both]):
        both &= ~_depend(with_number, both.shape)
    return torch.where(both, ours, _with_losses_alone(ours, theirs, with_number, of_nan=change.of_nan))


def _check_size(cell: Cell, change: Change, form: Call, part: str, actual: Any, wanted: Any) -> None:
    """Check the number of positions, where they have a standard, and that NaN is among results of another size.

    How many of several NaN are equal to each other is open. Of other operators, the plain results show the size.
    """
    if not (isinstance(actual, torch.Tensor) and isinstance(wanted, torch.Tensor)):
        return
    if facts(cell.info.name).positions:
        cell.judge.equal(form, tuple(actual.shape), tuple(wanted.shape), f"{part}: the shape")
    if change.of_nan and _has_nan(wanted):
        cell.judge.claim(form, _has_nan(actual), "no element is NaN", part)


def _exact(oracle: Oracle, position: int) -> Exact | None:
    """Return the exact value of an output; attention to one position rounds nothing on the host, by chance."""
    exact = oracle.leaf(position)
    return None if exact is None else replace(exact, rounds=True)


def _comparable(actual: Any, wanted: Any) -> bool:
    """Return whether both are tensors of one shape and dtype; if not, the plain results show it."""
    if not (isinstance(actual, torch.Tensor) and isinstance(wanted, torch.Tensor)):
        return False
    return (actual.shape, actual.dtype) == (wanted.shape, wanted.dtype) and wanted.layout is torch.strided


def _compare_bits(cell: Cell, form: Call, part: str, actual: torch.Tensor, wanted: torch.Tensor) -> None:
    """Check that all bits are the host's; one NaN is as good as another."""
    same = torch.equal(actual.isnan(), wanted.isnan()) and same_bits(without_nan(actual, 1.0), without_nan(wanted, 1.0))
    cell.judge.claim(form, same, "the operator moves elements, and bits of some have changed", part, Aspect.BITS)


def _with_losses_alone(actual: torch.Tensor, wanted: torch.Tensor, with_number: Any, *, of_nan: bool) -> torch.Tensor:
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


def _depend(with_number: Any, shape: torch.Size) -> torch.Tensor:
    """Return which elements depend on the places of special values: two finite numbers there give other results."""
    first, second = (with_number(number) for number in _FINITE)
    if not _comparable(first, second) or first.shape != shape:
        return torch.zeros(shape, dtype=torch.bool)
    # An algorithm over several columns rounds each of them otherwise.
    return ~torch.isclose(first, second, rtol=_ROUNDED, atol=0.0)


def _forward(info: Any, change: Change, position: int, number: float) -> Any:
    """Return an output in float64 with a finite number in the place of the special values; None if it is refused."""
    assert change.finite is not None
    try:
        return leaves(call(info.op, change.finite(number)[0].wide()))[position]
    except Exception:  # the number is outside of the operator's domain
        return None


# --- gradients --------------------------------------------------------------------------------------------------------


def check_gradients(cell: Cell, sample: Call) -> None:
    """Compare gradients for NaN and infinities in each tensor and in the cotangents with the host's."""
    if sample.process is not None or choices.has_choice(cell.info) or cell.op_class is OpClass.ITERATIVE:
        return
    for change in _in_training(cell, sample):
        _compare_gradients(cell, change)


def check_equal_operands(cell: Cell) -> None:
    """Check that gradients are finite where the host's are, for equal operands and for operands of zeros.

    A distance or a norm has a kink there. Which of its gradients is right is open, but NaN is none of them.
    """
    if cell.dtype is not torch.float32 or choices.has_choice(cell.info) or cell.op_class is OpClass.ITERATIVE:
        return
    for sample in (*cell.fixed, *_of_other_orders(cell)):
        for changed in _with_equal_operands(cell, sample) if sample.process is None else ():
            _check_finite(cell, changed)


def _of_other_orders(cell: Cell) -> Iterator[Call]:
    """Yield samples of distances and norms with their defaults alone, and with each order beside these.

    Each order and each mode may have a kernel of its own: the database's first samples have few of them together.
    """
    names = [name for name in settings.defaulted(cell.info) if argument_facts(name).order]
    for sample in unlike(cell, cell.fixed) if names else ():
        given = tuple(itertools.takewhile(lambda argument: isinstance(argument, torch.Tensor), sample.args))
        bare = replace(sample, args=given, kwargs={}, source="the defaults alone")
        yield bare
        for name, order in itertools.product(names, _ORDERS):
            yield replace(bare.with_argument(name, order), source=f"{name}={order}")


def _check_finite(cell: Cell, sample: Call) -> None:
    """Claim that the device's gradients are finite where the host's are."""
    try:
        due = PLAIN.run(cell.info, call, host_gradients, sample.on(HOST), cell.seed)[1]
    except Exception:  # such values are outside of the operator's domain
        return
    sample = sample.named(backward=PLAIN, seed=cell.seed)
    found = PLAIN.run(cell.info, execution.execute, execution.gradients, cell.on(sample), cell.seed)[1]
    for position, (actual, wanted) in enumerate(zip(found, due, strict=True)):
        if _comparable(actual, wanted):
            lost = plain(wanted).isfinite() & ~plain(actual).isfinite()
            said = f"{int(lost.sum())} numbers are not finite"
            cell.judge.claim(sample, not lost.any(), said, f"gradient of input {position}")


def _with_equal_operands(cell: Cell, sample: Call) -> Iterator[Call]:
    """Yield the call with zeros in each input, and with each operand equal to the first one."""
    first = sample.input
    for number, tensor in of_values(cell, sample):
        zeros = torch.zeros_like(tensor, requires_grad=False)
        yield special_values.replaced(sample, tensor, zeros).named(change=f"zeros in input {number}")
        if tensor is first or not isinstance(first, torch.Tensor) or not is_real(first):
            continue
        if first.dtype is tensor.dtype and first.dim() == tensor.dim() > 0 and first.shape[-1] == tensor.shape[-1]:
            # Rows in turn: as many as the operand has.
            equal = first.detach().expand(*tensor.shape[:-2], *first.shape[-2:]) if _fits(first, tensor) else None
            if equal is not None and equal.dim() > 1:
                rows = torch.arange(tensor.shape[-2]) % equal.shape[-2]
                equal = equal.index_select(-2, rows)
            if equal is not None:
                changed = special_values.replaced(sample, tensor, equal.clone())
                yield changed.named(change=f"input {number} equal to the first")


def _fits(first: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Return whether the leading dimensions of the first tensor expand to those of the other one, and none is empty."""
    pairs = zip(first.shape[:-2], tensor.shape[:-2], strict=True)
    return first.numel() > 0 and all(own in (1, other) for own, other in pairs)


def _in_training(cell: Cell, sample: Call) -> Iterator[Change]:
    """Yield the changes of a call whose gradients are compared: special values in its inputs and in its cotangents."""
    for number, tensor in of_values(cell, sample):
        yield from special_values.not_finite(sample, number, tensor, special_values.kinds_of(cell))
    for name, values in special_values.NOT_FINITE.items():

        def given(value: float | None, values: tuple[float, ...] = values) -> Pass:
            return Pass(
                lambda cotangent: special_values.spread(cotangent, values, value) if is_real(cotangent) else cotangent
            )

        finite = lambda value, given=given: (sample, given(value))  # noqa: E731
        yield Change(f"{name} in the cotangents", sample, finite, kind=given(None), of_nan=name == "NaN")


def _compare_gradients(cell: Cell, change: Change) -> None:
    """Compare the gradients of a changed call, but for NaN that the host alone loses."""
    state = torch.Generator().manual_seed(cell.seed).get_state()
    try:
        expected, due = change.kind.run(cell.info, call, host_gradients, change.sample.on(HOST), cell.seed)
    except Exception:  # such values are outside of the operator's domain
        return
    if not torch.equal(state, torch.get_rng_state()):
        return
    given = change.call.named(backward=change.kind, seed=cell.seed)
    _, found = change.kind.run(cell.info, execution.execute, execution.gradients, cell.on(given), cell.seed)
    n = cell.judge.length(change.sample, expected)
    for position, (actual, wanted) in enumerate(zip(found, due, strict=True)):
        if _comparable(actual, wanted):
            ours, theirs = plain(actual), plain(wanted)
            with_number = functools.partial(_gradient, cell.info, change, position, cell.seed)
            ours = _with_losses_alone(ours, theirs, with_number, of_nan=change.of_nan)
            # Float64 may have no special value there, where float32 overflows between its steps.
            cell.judge.tensor(given, ours, theirs, lambda: None, n, part=f"gradient of input {position}")


def _gradient(info: Any, change: Change, position: int, seed: int, number: float) -> Any:
    """Return a gradient in float64 with a finite number in the place of the special values; None if it is refused."""
    assert change.finite is not None
    sample, kind = change.finite(number)
    try:
        return kind.run(info, call, host_gradients, sample.wide(), seed)[1][position]
    except Exception:  # the number is outside of the operator's domain
        return None
