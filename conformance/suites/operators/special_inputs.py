"""Special values in the inputs of every operator: NaN, infinities, subnormals, negative zeros, large integers.

``tiers.py`` has them for functions of one and two tensors. Here every operator gets them, in one tensor at a time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

import torch

from conformance.numerics.budgets import OpClass
from conformance.numerics.compare import Exact, plain, same_bits, without_nan
from conformance.numerics.trees import leaves, mapped, tensors

from . import choices, execution, forms, large, sampling, tiers, tiny_inputs
from .execution import HOST, OperatorSample, call, host_gradients
from .oracle import Oracle, of_forward
from .passes import Pass
from .sampling import limits

#: Elements of a long sample of wide integers.
_LONG = 4099
#: Relative and absolute tolerance where only other numbers count.
_GROSS = (1e-3, 1e-5)
#: Of so many elements, one is special.
_EVERY = 3
#: Of so many elements, one is an infinity, where there are few.
_SELDOM = 31
#: Numbers by which integers are multiplied. The products are not numbers of float32; the last ones not of float64.
_FACTORS = {torch.int32: ((1 << 24) + 1,), torch.int64: ((1 << 24) + 1, (1 << 53) + 1)}
#: Integers are multiplied if no absolute value is larger.
_MOST = 99
#: Results of this size may have overflowed.
_OVERFLOW = {torch.int32: 2.0**30, torch.int64: 2.0**62}
#: Multiplies the other tensors beside subnormal ones, so that products are normal numbers.
_LARGE = 2.0**60
#: The backward of an ordinary pass.
_PLAIN = Pass()
#: Special values by the name that messages show.
_NOT_FINITE = {"NaN": (float("nan"),), "infinities": (float("inf"), -float("inf"))}
#: Finite numbers in the places of special ones. A result that is equal for both does not depend on these places: one
#: is large and one small, so that a median depends on them.
_FINITE = (20.0, -30.0)
#: The largest number in the other tensors beside infinities. Beside factors above one, the largest number of the dtype
#: overflows too, and cannot be told from an infinity; the same holds beside divisors below one.
_SMALL = 0.75
_KINDS = {"NaN": None, "infinities": _SMALL, "infinities beside large numbers": 64.0}
#: Stands in the place of a tensor; no number that the database has. Such samples count from 7000 on.
_A_NUMBER, _NUMBERED = 0.7, 7000


@dataclass(frozen=True)
class Change:
    """A sample with special values in one tensor.

    ``finite`` returns the same with a finite number in their places; with it, only lost special values are wrong.
    With ``of_nan``, the special values are NaN. With ``moves``, all bits count. With ``in_forms``, the ``out=`` and
    in-place forms are called too. With ``may_refuse``, an exception of the device is a note. With
    ``gross``, only other numbers count, and no roundings.
    """

    name: str
    sample: OperatorSample
    finite: Callable[[float], tuple[OperatorSample, Pass]] | None = None
    moves: bool = False
    kind: Pass = _PLAIN
    in_forms: bool = False
    may_refuse: bool = False
    of_nan: bool = False
    gross: bool = False

    def __str__(self) -> str:
        return f"{self.sample}, {self.name}"


def check(info, judge, samples: list[OperatorSample], dtype: torch.dtype) -> None:
    """Compare results for special values in each tensor of some samples with the host's."""
    has_samples = dtype.is_floating_point and tiers.has_special_values(info)
    if not judge.values or (dtype.is_floating_point and info.name in limits().special_inputs.undefined):
        return
    if judge.op_class is OpClass.ITERATIVE:
        _check_solved(info, judge, samples, dtype)
        return
    if not (dtype.is_floating_point or dtype in _FACTORS):
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
        changes = _integers(info, sample, dtype) if dtype in _FACTORS else _floats(info, judge, sample)
        for change in changes:
            _compare(info, judge, change)


def _check_numbers(info, judge, dtype: torch.dtype) -> None:
    """Check that one element of a tensor becomes the same number in Python, bit for bit."""
    tiny = torch.finfo(dtype).smallest_normal / 8 if judge.check.subnormals and dtype.is_floating_point else 1.0
    odd = (1.2345678, -0.0, float("nan"), torch.inf, -torch.inf, tiny)
    wide = torch.float64 if dtype.is_floating_point else dtype
    for value in odd if dtype.is_floating_point else (_MOST, *_FACTORS[dtype]):
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
        tiny_inputs.check_losses(info, judge, sample, (*in_products, *eliminated))
        for number, tensor in _of_values(sample):
            for change in _not_finite(sample, number, tensor, _KINDS) if number in in_products else ():
                _compare(info, judge, change)
            for change in _not_finite(sample, number, tensor, ("NaN",)) if number in eliminated else ():
                # A library may find no pivot in such a matrix, and say that it is singular.
                _compare(info, judge, replace(change, may_refuse=True, of_nan=False))
            if number in table.triangular.get(info.name, ()):
                _compare(info, judge, _rare(sample, number, tensor, -torch.inf))


def check_long_integers(info, judge, samples: list[OperatorSample], dtype: torch.dtype) -> None:
    """Compare results of long samples for integers that float32 does not hold, whose sums 32 bits do not hold."""
    if dtype not in _FACTORS or not judge.values or info.name in limits().special_inputs.undefined:
        return
    for sample in large.grown(info, samples, dtype, _LONG):
        for change in _integers(info, sample, dtype):
            _compare(info, judge, replace(change, in_forms=False))


def check_kernel(kernel, judge, sample: OperatorSample) -> None:
    """Compare results of a kernel that is no operator of the database for special values in each tensor."""
    for number, tensor in _of_values(sample):
        for change in _not_finite(sample, number, tensor):
            _compare(kernel, judge, change)
        if judge.check.subnormals and tensor.dtype is torch.float32:
            # One side of a kink begins with them.
            name = f"subnormal numbers in input {number}"
            _compare(kernel, judge, Change(name, _with_subnormals(kernel, sample, tensor), gross=True))


def unlike(
    info,
    judge,
    samples: list[OperatorSample],
    most: int | None = None,
    *,
    by_dims: bool = False,
    draws: bool = False,
) -> list[OperatorSample]:
    """Return some samples with other kinds of arguments each, the largest first.

    None of them draws random numbers, except with ``draws``. With ``by_dims``, and in the deep tier, an input with
    another number of dimensions is of another kind.
    """
    most, by_dims = most or limits().special_inputs.samples, by_dims or sampling.is_deep()
    found: dict[tuple, OperatorSample] = {}
    for sample in sorted(samples, key=sampling.elements, reverse=True):
        fits = draws or sample.number not in judge.drawn
        fits &= sample.process is None or info.name in limits().factors.moved_by
        if fits and all(tensor.layout is torch.strided and tensor.numel() for tensor in sample.tensors):
            dims = sample.input.dim() if by_dims and isinstance(sample.input, torch.Tensor) else 0
            found.setdefault((dims, *_kinds(sample)), sample)
    chosen = list(found.values())[:most]
    known = {_kinds(sample) for sample in found.values() if sampling.elements(sample) > 1}
    numbers = _with_a_number(info, chosen[0], known) if chosen else None
    return [*chosen, numbers] if numbers is not None else chosen


def _with_a_number(info, sample: OperatorSample, known: set[tuple]) -> OperatorSample | None:
    """Return the sample with a number in the place of its last tensor of values.

    None if there already is such a sample among the ``known`` kinds, or if the host takes no number there.

    That is another overload of most functions. The database has it for few of them, or for one element alone.
    """
    given = [(place, value) for place, value in enumerate(sample.args) if isinstance(value, torch.Tensor)]
    places = [place for place, value in given if _is_real(value)]
    numbers: tuple[float, ...] = (_A_NUMBER, -_A_NUMBER)
    if not places and isinstance(sample.input, torch.Tensor) and sample.input.dtype in _FACTORS:
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
    if not _has_beta(info) or not isinstance(sample.input, torch.Tensor) or not _is_real(sample.input):
        return
    scaled = replace(sample, kwargs={**sample.kwargs, "beta": 0})
    ignored = _with(scaled, sample.input, torch.full_like(sample.input, float("nan"), requires_grad=False))
    if all(bool(plain(leaf).isfinite().all()) for leaf in tensors(leaves(call(info.op, ignored.on(HOST))))):
        _compare(info, judge, Change("NaN in the input that beta=0 ignores", ignored, in_forms=True))


def _has_beta(info) -> bool:
    schemas = torch._C._jit_get_schemas_for_operator(f"aten::{info.aten_name or info.name}")
    return any({"alpha", "beta"} <= {argument.name for argument in schema.arguments} for schema in schemas)


# --- floating-point numbers -------------------------------------------------------------------------------------------


def _floats(info, judge, sample: OperatorSample) -> Iterator[Change]:
    moves = _moves(info, sample)
    for number, tensor in _of_values(sample):
        name = f"in input {number}"
        if moves:
            values = _all_kinds(tensor, subnormals=judge.check.subnormals)
            yield Change(f"special values {name}", _with(sample, tensor, values), moves=True, in_forms=True)
            continue
        yield from _not_finite(sample, number, tensor)
        yield _nothing_else(sample, number, tensor)
        if tensor.dtype is torch.float32 and tensor.numel() > 1:
            yield _rare(sample, number, tensor, -torch.inf)
        if sampling.is_deep() and tensor.numel() > 1:
            yield _rare(sample, number, tensor, torch.inf)
        if choices.has_choice(info):
            # A choice of few elements, such as a median, meets infinities where most elements are infinite.
            yield Change(f"infinities alone {name}", _with(sample, tensor, torch.full_like(tensor, torch.inf)))
        # In 16 bits, subnormal numbers have few digits, and each step of a formula may lose them all.
        if judge.check.subnormals and tensor.dtype in (torch.float32, torch.float64):
            yield Change(f"subnormal numbers {name}", _with_subnormals(info, sample, tensor))


def _not_finite(
    sample: OperatorSample, number: int, tensor: torch.Tensor, kinds: Collection[str] = ()
) -> Iterator[Change]:
    for kind in kinds or (_KINDS if sampling.is_deep() else _NOT_FINITE):
        values, largest = _NOT_FINITE["NaN" if kind == "NaN" else "infinities"], _KINDS[kind]
        others = sample if largest is None else _with_others_up_to(largest, sample, tensor)

        def placed(value: float | None, values=values, others=others) -> OperatorSample:
            return _with(others, tensor, _spread(tensor, values, value))

        finite = lambda value, placed=placed: (placed(value), _PLAIN)  # noqa: E731
        yield Change(f"{kind} in input {number}", placed(None), finite, in_forms=True, of_nan=kind == "NaN")


def _nothing_else(sample: OperatorSample, number: int, tensor: torch.Tensor) -> Change:
    """Return the sample with NaN alone in one tensor: an operator may read other places than every third."""

    def filled(value: float) -> OperatorSample:
        return _with(sample, tensor, torch.full_like(tensor, value, requires_grad=False))

    finite = lambda value: (filled(value), _PLAIN)  # noqa: E731
    return Change(f"NaN alone in input {number}", filled(float("nan")), finite, of_nan=True)


def _rare(sample: OperatorSample, number: int, tensor: torch.Tensor, infinity: float) -> Change:
    """Return the sample with few infinities of one sign in one tensor: of both signs, or of many, a sum may be NaN."""

    def placed(value: float) -> OperatorSample:
        flat = tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1)
        flat[1::_SELDOM] = value
        return _with(sample, tensor, flat.reshape(tensor.shape))

    name = f"few infinities in input {number}"
    return Change(name, placed(infinity), lambda value: (placed(value), _PLAIN), in_forms=True)


def _with_others_up_to(most: float, sample: OperatorSample, tensor: torch.Tensor) -> OperatorSample:
    """Return the sample with numbers up to ``most`` in every other tensor of values."""

    def scaled(leaf):
        if leaf is tensor or not isinstance(leaf, torch.Tensor) or not _is_real(leaf) or leaf.element_size() < 2:
            return leaf
        largest = float(leaf.detach().abs().max()) if leaf.numel() else 0.0
        # Numbers below one stay what they are: they may be probabilities.
        if not largest > _SMALL:
            return leaf
        found = leaf.detach() * (most / largest)
        return found.requires_grad_() if leaf.requires_grad else found

    return sample.with_arguments(mapped(sample.arguments, scaled))


def _spread(tensor: torch.Tensor, values: tuple[float, ...], number: float | None) -> torch.Tensor:
    """Return the tensor with the values in every third place, in turn; with a finite number in their size if given."""
    flat = tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1)
    for order, value in enumerate(values):
        sign = -1.0 if value < 0 else 1.0
        flat[_EVERY // 2 + order * _EVERY :: len(values) * _EVERY] = value if number is None else number * sign
    if flat.numel() <= _EVERY // 2:
        flat.fill_(values[0] if number is None else number)
    return flat.reshape(tensor.shape)


def _all_kinds(tensor: torch.Tensor, *, subnormals: bool) -> torch.Tensor:
    limit = torch.finfo(tensor.dtype)
    tiny = limit.smallest_normal * (limit.eps * 3 if subnormals else 1)
    values = torch.tensor(
        [float("inf"), -0.0, tiny, float("nan"), -tiny, -float("inf"), limit.max], dtype=torch.float64
    )
    flat = tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1)
    flat[:] = values.to(tensor.dtype).repeat(-(-flat.numel() // len(values)))[: flat.numel()]
    return flat.reshape(tensor.shape)


def _with_subnormals(info, sample: OperatorSample, tensor: torch.Tensor) -> OperatorSample:
    """Return the sample with subnormal numbers in one tensor, and large ones in the others if the host takes them."""
    tiny = torch.finfo(tensor.dtype).smallest_normal / 8

    def scaled(leaf):
        if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point():
            return leaf
        return leaf.detach() * (tiny if leaf is tensor else min(_LARGE, torch.finfo(leaf.dtype).max ** 0.5))

    changed = sample.with_arguments(mapped(sample.arguments, scaled))
    try:
        call(info.op, changed.on(HOST))
    except Exception:  # some inputs have bounds, as probabilities have
        return _with(sample, tensor, tensor.detach() * tiny)
    return changed


def _of_values(sample: OperatorSample) -> Iterator[tuple[int, torch.Tensor]]:
    for number, tensor in enumerate(sample.tensors[: limits().special_inputs.tensors]):
        # float8 has no arithmetic.
        if _is_real(tensor) and tensor.element_size() > 1 and number not in sample.on_host:
            yield number, tensor


def _with(sample: OperatorSample, old: torch.Tensor, new: torch.Tensor) -> OperatorSample:
    return sample.with_tensor(old, new.requires_grad_() if old.requires_grad else new)


def _moves(info, sample: OperatorSample) -> bool:
    """Return whether the operator moves bits: it takes every dtype, and results have elements of the inputs alone."""
    if not {torch.bool, torch.complex64} <= set(info.dtypes):
        return False
    try:
        result = call(info.op, sample.on(HOST))
    except Exception:  # the plain results show it
        return False
    given = [tensor for tensor in sample.tensors if tensor.is_floating_point()]
    made = [leaf for leaf in leaves(result) if isinstance(leaf, torch.Tensor)]
    if not given or not made or any(tensor.dtype != given[0].dtype for tensor in (*given, *made)):
        return False
    known = torch.cat([*(tensor.detach().reshape(-1) for tensor in given), given[0].new_zeros(1)])
    # A long product may be zero without having moved anything.
    has_moved = any(bool((leaf != 0).any()) for leaf in made)
    is_made_of_them = has_moved and all(bool(torch.isin(leaf, known).all()) for leaf in made)
    return sampling.elements(sample) > _EVERY and is_made_of_them


# --- integers ---------------------------------------------------------------------------------------------------------


def _integers(info, sample: OperatorSample, dtype: torch.dtype) -> Iterator[Change]:
    # Functions with real results are judged in floating point. Some run through a loop of as many steps.
    if not _gives_integers(info, sample):
        return
    values = _values_among(info, sample, dtype)
    for number, tensor in enumerate(sample.tensors[: limits().special_inputs.tensors]):
        if tensor.dtype is not dtype or number not in values or not tensor.numel():
            continue
        # Products of two stay within the dtype for numbers of this size. A division keeps their order.
        small = tensor.detach().div(int(tensor.abs().max()) // _MOST + 1, rounding_mode="floor")
        for factor in _FACTORS[dtype]:
            changed = _with(sample, tensor, small * factor)
            yield Change(f"integers times {factor} in input {number}", changed, in_forms=True)
            near = _with(sample, tensor, small + factor)
            yield Change(f"integers plus {factor} in input {number}", near, in_forms=True)


def _gives_integers(info, sample: OperatorSample) -> bool:
    try:
        made = leaves(call(info.op, sample.on(HOST)))
    except Exception:  # the plain results show it
        return False
    return all(isinstance(leaf, torch.Tensor) and not leaf.is_floating_point() for leaf in made)


def _values_among(info, sample: OperatorSample, dtype: torch.dtype) -> set[int]:
    """Return the positions of tensors that hold values, not indices: in float32 they are floating-point numbers."""
    if torch.float32 not in info.dtypes:
        kinds = {kind.__name__ for kind in type(info).__mro__}
        # A shift by a large number is undefined.
        is_pair = "BinaryUfuncInfo" in kinds and "shift" not in info.name
        return {0, 1} if is_pair else {0} if kinds & {"UnaryUfuncInfo", "BinaryUfuncInfo"} else set()
    with torch.random.fork_rng(devices=()):
        twins = sampling.pick(info, torch.float32, requires_grad=False, extent=limits().inference)
    shapes = [tensor.shape for tensor in sample.tensors]
    twin = next((t for t in twins if [tensor.shape for tensor in t.tensors] == shapes), None)
    if twin is None:
        return {0} if sample.tensors and sample.tensors[0] is sample.input else set()
    return {number for number, tensor in enumerate(twin.tensors) if tensor.is_floating_point()}


def _without_overflow(info, sample: OperatorSample, position: int, found: torch.Tensor, due: torch.Tensor):
    """Return the device's output with the host's elements where the result may not fit the dtype."""

    def wide(leaf):
        return leaf.double() if isinstance(leaf, torch.Tensor) and leaf.dtype in _FACTORS else leaf

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
            _check_size(info, judge, label, actual, wanted)
            continue
        ours, theirs = plain(actual), plain(wanted)
        if change.moves:
            _compare_bits(judge, label, ours, theirs)
        elif change.gross and theirs.is_floating_point():
            both = ours.isfinite() & theirs.isfinite()
            other = both & ~torch.isclose(ours, theirs, *_GROSS)
            judge.check.that(not other.any(), f"{label}: {int(other.sum())} elements are other numbers than the host's")
        elif theirs.dtype in _FACTORS:
            # An integer result of special floating-point numbers, such as a position, has a standard for few operators.
            if info.name in limits().special_inputs.positions:
                judge.tensor(label, ours, theirs, lambda: None, n)
            elif not any(tensor.is_floating_point() for tensor in change.sample.tensors):
                ours = _without_overflow(info, change.sample, position, ours, theirs)
                judge.tensor(label, ours, theirs, lambda: None, n)
        else:
            if change.finite is not None:
                both = ours.isfinite() & theirs.isfinite()
                with_number = functools.partial(_forward, info, change, position)
                losses = _with_losses_alone(ours, theirs, with_number, of_nan=change.of_nan)
                ours = torch.where(both, ours, losses)
            judge.tensor(label, ours, theirs, functools.partial(_exact, oracle, position), n)


def _check_size(info, judge, label: str, actual, wanted) -> None:
    """Check the number of positions, where they have a standard; of other operators, the plain results show it."""
    if info.name in limits().special_inputs.positions and isinstance(actual, torch.Tensor):
        judge.check.equal(tuple(actual.shape), tuple(wanted.shape), f"{label}: the shape")


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
        first, second = (with_number(number) for number in _FINITE)
        lost &= first != second if _comparable(first, second) and first.shape == lost.shape else False
    return torch.where(lost, actual, wanted)


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


def _in_training(sample: OperatorSample) -> Iterator[Change]:
    for number, tensor in _of_values(sample):
        yield from _not_finite(sample, number, tensor)
    for name, values in _NOT_FINITE.items():

        def given(value: float | None, values=values) -> Pass:
            return Pass(lambda cotangent: _spread(cotangent, values, value) if _is_real(cotangent) else cotangent)

        finite = lambda value, given=given: (sample, given(value))  # noqa: E731
        yield Change(f"{name} in the cotangents", sample, finite, kind=given(None), of_nan=name == "NaN")


def _is_real(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.layout is torch.strided


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
