"""Special values for the tensors of a sample: NaN, infinities, subnormals, negative zeros, large integers.

``special_inputs.py`` compares what a device makes of them with what the host does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from conformance.numerics.trees import leaves, mapped
from conformance.suites.operators.calls import sampling
from conformance.suites.operators.calls.calls import HOST, Call
from conformance.suites.operators.calls.classes import is_a
from conformance.suites.operators.calls.execution import call, host_call
from conformance.suites.operators.calls.passes import PLAIN, Pass
from conformance.suites.operators.judge import choices
from conformance.suites.operators.judge.cells import Cell

#: Of so many elements, one is special.
_EVERY = 3
#: Of so many elements, one is an infinity, where there are few.
_SELDOM = 31
#: Numbers by which integers are multiplied. The products are not numbers of float32; the last ones not of float64.
FACTORS = {torch.int32: ((1 << 24) + 1,), torch.int64: ((1 << 24) + 1, (1 << 53) + 1)}
#: Half of the largest number of int32.
_HALF = 1 << 30
#: Integers are multiplied if no absolute value is larger.
MOST = 99
#: Multiplies the other tensors beside subnormal ones, so that products are normal numbers.
_LARGE = 2.0**60
#: Special values by the name that messages show.
NOT_FINITE = {"NaN": (float("nan"),), "infinities": (float("inf"), -float("inf"))}
#: The largest number in the other tensors beside infinities. Beside factors above one, the largest number of the dtype
#: overflows too, and cannot be told from an infinity; the same holds beside divisors below one.
_SMALL, _DIVISOR = 0.75, 64.0
#: The largest number in the other tensors beside each kind; None leaves them as they are.
KINDS = {"NaN": None, "infinities": _SMALL, "infinities beside large numbers": _DIVISOR}


@dataclass(frozen=True)
class Change:
    """A sample with special values in one tensor.

    ``finite`` returns the same with a finite number in their places; with it, only lost special values are wrong.
    With ``of_nan``, the special values are NaN. With ``moves``, all bits count. With ``in_forms``, the ``out=`` and
    in-place forms are called too. With ``may_refuse``, an exception of the device is a note. With ``gross``, small
    differences from the host are no failure: a right device rounds otherwise. With ``kinks``, finite results that
    depend on a special value are open: a comparison with NaN leads to either side of a kink.
    """

    name: str
    sample: Call
    finite: Callable[[float], tuple[Call, Pass]] | None = None
    moves: bool = False
    kind: Pass = PLAIN
    in_forms: bool = False
    may_refuse: bool = False
    of_nan: bool = False
    gross: bool = False
    kinks: bool = False

    @property
    def call(self) -> Call:
        """Return the call with these values."""
        return self.sample.named(change=self.name)


def _placing(name: str, placed: Callable[[Any], Call], value: Any, **facts: Any) -> Change:
    """Return the change of a sample that ``placed`` makes with ``value``; with a number instead, it is finite."""
    return Change(name, placed(value), lambda number: (placed(number), PLAIN), **facts)


# --- floating-point numbers -------------------------------------------------------------------------------------------


def floats(cell: Cell, sample: Call) -> Iterator[Change]:
    """Yield the sample with special floating-point numbers in one tensor at a time."""
    moves = _moves(cell.info, sample)
    for number, tensor in of_values(cell, sample):
        name = f"in input {number}"
        if moves:
            for turn, values in enumerate(_all_kinds(tensor, subnormals=cell.check.subnormals)):
                title = f"special values {name}{f', turn {turn}' if turn else ''}"
                yield Change(title, replaced(sample, tensor, values), moves=True, in_forms=True)
            continue
        yield from not_finite(sample, number, tensor, kinds_of(cell))
        yield _nothing_else(sample, number, tensor)
        if tensor.dtype is torch.float32 and tensor.numel() > 1:
            yield rare(sample, number, tensor, -torch.inf)
        if cell.deep and tensor.numel() > 1:
            yield rare(sample, number, tensor, torch.inf, first=0)
        if choices.has_choice(cell.info):
            # A choice of few elements, such as a median, meets infinities where most elements are infinite.
            yield Change(f"infinities alone {name}", replaced(sample, tensor, torch.full_like(tensor, torch.inf)))
        # In 16 bits, subnormal numbers have few digits, and each step of a formula may lose them all.
        if cell.check.subnormals and tensor.dtype in (torch.float32, torch.float64):
            yield Change(f"subnormal numbers {name}", with_subnormals(cell.info, sample, tensor))


def kinds_of(cell: Cell) -> Collection[str]:
    """Return the kinds of special values that a cell gets."""
    return KINDS if cell.deep else NOT_FINITE


def not_finite(sample: Call, number: int, tensor: torch.Tensor, kinds: Collection[str]) -> Iterator[Change]:
    """Yield the sample with special values of some kinds in every third place of one tensor."""
    for kind in kinds:
        values, largest = NOT_FINITE["NaN" if kind == "NaN" else "infinities"], KINDS[kind]
        others = sample if largest is None else _with_others_up_to(largest, sample, tensor)

        def placed(value: float | None, values: tuple[float, ...] = values, others: Call = others) -> Call:
            return replaced(others, tensor, spread(tensor, values, value))

        yield _placing(f"{kind} in input {number}", placed, None, in_forms=True, of_nan=kind == "NaN")


def _nothing_else(sample: Call, number: int, tensor: torch.Tensor) -> Change:
    """Return the sample with NaN in every place of one tensor: an operator may read other places than every third."""

    def filled(value: float) -> Call:
        return replaced(sample, tensor, torch.full_like(tensor, value, requires_grad=False))

    return _placing(f"NaN alone in input {number}", filled, float("nan"), of_nan=True)


def rare(sample: Call, number: int, tensor: torch.Tensor, infinity: float, first: int = 1) -> Change:
    """Return the sample with few infinities of one sign, or NaN, in one tensor: of both signs, a sum may be NaN."""

    def placed(value: float) -> Call:
        flat = tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1)
        flat[first::_SELDOM] = value
        return replaced(sample, tensor, flat.reshape(tensor.shape))

    name = "few NaN" if math.isnan(infinity) else f"few {'negative ' if infinity < 0 else ''}infinities"
    return _placing(f"{name} in input {number}", placed, infinity, in_forms=True)


def _with_others_up_to(most: float, sample: Call, tensor: torch.Tensor) -> Call:
    """Return the sample with numbers up to ``most`` in every other tensor of values."""

    def scaled(leaf: Any) -> Any:
        if leaf is tensor or not isinstance(leaf, torch.Tensor) or not is_real(leaf) or leaf.element_size() < 2:
            return leaf
        largest = float(leaf.detach().abs().max()) if leaf.numel() else 0.0
        # Numbers below one stay what they are: they may be probabilities.
        if not largest > _SMALL:
            return leaf
        found = leaf.detach() * (most / largest)
        return found.requires_grad_() if leaf.requires_grad else found

    return sample.with_arguments(mapped(sample.arguments, scaled))


def spread(tensor: torch.Tensor, values: tuple[float, ...], number: float | None) -> torch.Tensor:
    """Return the tensor with the values in every third place, in turn; with finite numbers in their places if given.

    These have the signs of the values, and different sizes: as many of both signs would cancel in a sum.
    """
    flat = tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1)
    for order, value in enumerate(values):
        sign = -1.0 if value < 0 else 1.0
        flat[_EVERY // 2 + order * _EVERY :: len(values) * _EVERY] = (
            value if number is None else number * sign * (1 + order / 4)
        )
    if flat.numel() <= _EVERY // 2:
        flat.fill_(values[0] if number is None else number)
    return flat.reshape(tensor.shape)


def _all_kinds(tensor: torch.Tensor, *, subnormals: bool) -> Iterator[torch.Tensor]:
    """Yield the tensor with special values in its elements; several tensors if it has fewer elements than there are."""
    limit = torch.finfo(tensor.dtype)
    tiny = limit.smallest_normal * (limit.eps * 3 if subnormals else 1)
    kinds = (torch.inf, -0.0, tiny, torch.nan, -tiny, -torch.inf, limit.max)
    values = torch.tensor(kinds, dtype=torch.float64).to(tensor.dtype)
    for turn in range(0, len(kinds), max(1, tensor.numel())):
        rolled = values.roll(-turn).repeat(-(-tensor.numel() // len(kinds)))
        yield rolled[: tensor.numel()].reshape(tensor.shape)


def with_subnormals(info: Any, sample: Call, tensor: torch.Tensor) -> Call:
    """Return the sample with subnormal numbers in one tensor, and large ones in the others if the host takes them."""
    tiny = torch.finfo(tensor.dtype).smallest_normal / 8

    def scaled(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point():
            return leaf
        return leaf.detach() * (tiny if leaf is tensor else min(_LARGE, torch.finfo(leaf.dtype).max ** 0.5))

    changed = sample.with_arguments(mapped(sample.arguments, scaled))
    try:
        call(info.op, changed.on(HOST))
    except Exception:  # some inputs have bounds, as probabilities have
        return replaced(sample, tensor, tensor.detach() * tiny)
    return changed


def of_values(cell: Cell, sample: Call) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield the tensors that hold floating-point values on the device, with their positions."""
    for number, tensor in enumerate(sample.tensors[: cell.work.special_inputs.tensors]):
        # float8 has no arithmetic.
        if is_real(tensor) and tensor.element_size() > 1 and number not in sample.on_host:
            yield number, tensor


def replaced(sample: Call, old: torch.Tensor, new: torch.Tensor) -> Call:
    """Return the sample with another tensor, which requires a gradient if the old one does."""
    return sample.with_tensor(old, new.requires_grad_() if old.requires_grad else new)


def _moves(info: Any, sample: Call) -> bool:
    """Return whether the operator moves bits: it takes every dtype, and results have elements of the inputs alone."""
    if not {torch.bool, torch.complex64} <= set(info.dtypes):
        return False
    given = [tensor for tensor in sample.tensors if tensor.is_floating_point()]
    made = [leaf for leaf in leaves(host_call(info.op, sample).value) if isinstance(leaf, torch.Tensor)]
    if not given or not made or any(tensor.dtype != given[0].dtype for tensor in (*given, *made)):
        return False
    known = torch.cat([*(tensor.detach().reshape(-1) for tensor in given), given[0].new_zeros(1)])
    # A long product may be zero without having moved anything.
    has_moved = any(bool((leaf != 0).any()) for leaf in made)
    is_made_of_them = has_moved and all(bool(torch.isin(leaf, known).all()) for leaf in made)
    return sample.elements > _EVERY and is_made_of_them


# --- integers ---------------------------------------------------------------------------------------------------------


def integers(cell: Cell, sample: Call) -> Iterator[Change]:
    """Yield the sample with wide integers in one tensor at a time."""
    info, dtype = cell.info, cell.dtype
    # Functions with real results are judged in floating point. Some run through a loop of as many steps.
    if not _gives_integers(info, sample):
        return
    values = _values_among(cell, sample)
    for number, tensor in enumerate(sample.tensors[: cell.work.special_inputs.tensors]):
        if tensor.dtype is not dtype or number not in values or not tensor.numel():
            continue
        # Products of two stay within the dtype for numbers of this size. A division keeps their order.
        small = tensor.detach().div(int(tensor.abs().max()) // MOST + 1, rounding_mode="floor")
        for factor in FACTORS[dtype]:
            changed = replaced(sample, tensor, small * factor)
            yield Change(f"integers times {factor} in input {number}", changed, in_forms=True)
            near = replaced(sample, tensor, small + factor)
            yield Change(f"integers plus {factor} in input {number}", near, in_forms=True)
        if dtype is torch.int32 and _dtypes_of_results(info, sample) == {torch.int64}:
            # The sum of two of them is no number of the input's dtype, but one of the result's.
            near = replaced(sample, tensor, small + _HALF)
            yield Change(f"integers plus {_HALF} in input {number}", near, in_forms=True)


def ends(info: Any, sample: Call, dtype: torch.dtype) -> Call | None:
    """Return an operator's call of two tensors with pairs of integers near the ends and the middle of a dtype.

    Divisors are not zero. Pairs stay for which the host gives the same in float64: of the others, a result or a step to
    it is no number of the dtype, and no document tells its bits.
    """
    if not (is_a(info, "BinaryUfuncInfo") and torch.float64 in info.dtypes and _gives_integers(info, sample)):
        return None
    low, high, step = torch.iinfo(dtype).min, torch.iinfo(dtype).max, 1 << (torch.iinfo(dtype).bits * 11 // 16)
    chosen = {low, low + 1, -step - 1, -step, -3, -1, 1, 2, 3, step, step + 1, high - 1, high} - {0}
    # No processor divides the smallest integer by -1.
    pairs = [(x, y) for x in chosen for y in chosen if low <= min(x, y) and (x, y) != (low, -1)]
    left, right = torch.tensor(sorted(pairs)).T.to(dtype)
    found, wide = (
        host_call(info.op, replace(sample, input=change(left), args=(change(right),)))
        for change in (torch.clone, torch.Tensor.double)
    )
    if not (found.comparable and wide.comparable):
        return None
    same = found.value.double() == wide.value
    return replace(sample, input=left[same], args=(right[same],)) if bool(same.any()) else None


def _gives_integers(info: Any, sample: Call) -> bool:
    """Return whether all results of a call are integers or truth values."""
    made = _dtypes_of_results(info, sample)
    return None not in made and not any(dtype is not None and dtype.is_floating_point for dtype in made)


def _dtypes_of_results(info: Any, sample: Call) -> set[torch.dtype | None]:
    """Return the dtypes of the host's results, with None for what is no tensor and for a call that it refuses."""
    made = leaves(host_call(info.op, sample).value)  # None for a refusal
    return {leaf.dtype if isinstance(leaf, torch.Tensor) else None for leaf in made}


def _values_among(cell: Cell, sample: Call) -> set[int]:
    """Return the positions of tensors that hold values, not indices: in float32 they are floating-point numbers."""
    info = cell.info
    if torch.float32 not in info.dtypes:
        # A shift by a large number is undefined.
        is_pair = is_a(info, "BinaryUfuncInfo") and "shift" not in info.name
        return {0, 1} if is_pair else {0} if is_a(info, "UnaryUfuncInfo", "BinaryUfuncInfo") else set()
    with torch.random.fork_rng(devices=()):
        twins = sampling.pick(info, torch.float32, requires_grad=False, extent=cell.work.inference)
    shapes = [tensor.shape for tensor in sample.tensors]
    twin = next((t for t in twins if [tensor.shape for tensor in t.tensors] == shapes), None)
    if twin is None:
        return {0} if sample.tensors and sample.tensors[0] is sample.input else set()
    return {number for number, tensor in enumerate(twin.tensors) if tensor.is_floating_point()}


def is_real(tensor: torch.Tensor) -> bool:
    """Return whether a tensor holds real floating-point numbers in dense memory."""
    return tensor.is_floating_point() and tensor.layout is torch.strided
