"""Special values in one operand of a function on lists at a time, and in all: the host's function is the reference.

It runs in float64. Numbers that are special to a dtype are special to it alone, so a lost one shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from conformance.judging.checker import Checker
from conformance.numerics.compare import plain, zero_signs
from conformance.numerics.trees import mapped
from conformance.suites.operators.calls.facts import facts

from .functions import Function, ListCall
from .special_lists import OPEN, moved

_ORDINARY = (0.5, -1.5, 2.0, 0.25, 3.0, -0.5, 1.25, 0.75, -2.0)
_INTEGERS = (1, 3, 2, 5, 4, 1, 2, 3, 1)
#: Lists that are so long meet several of the numbers of an overload.
_TENSORS = 4
#: Of so many elements, one is special.
_EVERY = 3
#: Steps of the smallest subnormal number above which a result is more than roundings.
_STEPS = 16
#: Functions of integers whose results for large ones fit into 64 bits beside small ones.
EXACT = ("add", "sub", "mul", "addcmul", "maximum", "minimum", "clamp_min", "clamp_max", "neg", "abs", "sign")
_ERRORS = (RuntimeError, TypeError, ValueError, IndexError)


@dataclass(frozen=True)
class Kind:
    """Special values by their name, and whether all operands have them at once too, or zeros are beside them."""

    name: str
    values: tuple[float, ...]
    together: bool = False
    beside_zeros: bool = False


def _kinds(dtype: torch.dtype, *, subnormals: bool) -> Iterator[Kind]:
    if not dtype.is_floating_point:
        yield Kind("large integers", ((1 << 24) + 1, (1 << 53) + 1))
        return
    yield Kind("NaN", (float("nan"),))
    yield Kind("infinities", (float("inf"), -float("inf")))
    yield Kind("negative zeros", (-0.0,), together=True, beside_zeros=True)
    if subnormals and dtype is torch.float32:
        tiny = torch.finfo(dtype).smallest_normal / 8
        yield Kind("subnormal numbers", (tiny, 5 * tiny), together=True, beside_zeros=True)


def check_operands(
    check: Checker, function: Function, call: ListCall, place: str, device: torch.device, dtype: torch.dtype
) -> None:
    """Check that a special value in any operand gives what the function gives for it on the host in float64."""
    ordinary = _ORDINARY if dtype.is_floating_point else _INTEGERS
    first = [torch.tensor(ordinary, dtype=dtype).roll(number * _EVERY) for number in range(_TENSORS)]
    operands = [first, *call.arguments(first)]
    run = function.run(call, place)
    tensors = [number for number, operand in enumerate(operands) if _has_tensors(operand)]
    for kind in _kinds(dtype, subnormals=check.subnormals):
        for chosen in [[number] for number in tensors] + ([tensors] if kind.together and len(tensors) > 1 else []):
            for given in _with(operands, chosen, kind):
                label = f"_foreach_{function.name}{place} with {call.label or 'a list'}"
                _check_one(check, function, f"{label}, {kind.name} in operands {chosen}", kind, _Call(
                    run, given, call.options, bool(place)), device)  # fmt: skip


@dataclass(frozen=True)
class _Call:
    run: Callable[..., Any]
    operands: list[Any]
    options: dict[str, Any]
    in_place: bool

    def on(self, device: torch.device) -> list[torch.Tensor]:
        """Return the results on the host of a call on a device."""
        first, *arguments = (moved(operand, device) for operand in self.operands)
        found = self.run(first, *arguments, **self.options)
        return [plain(tensor) for tensor in (first if self.in_place else found)]

    def wide(self) -> _Call:
        """Return the call in float64."""
        return _Call(self.run, mapped(self.operands, _double), self.options, self.in_place)


def _double(leaf: Any) -> Any:
    return leaf.double() if isinstance(leaf, torch.Tensor) else leaf


def _has_tensors(operand: Any) -> bool:
    return isinstance(operand, torch.Tensor) or (isinstance(operand, list) and isinstance(operand[0], torch.Tensor))


def _with(operands: list[Any], chosen: list[int], kind: Kind) -> Iterator[list[Any]]:
    """Yield the operands with special values in those that are chosen; a tensor of one number has one at a time."""
    for turn, value in enumerate(kind.values):
        given = list(operands)
        for order, number in enumerate(chosen):
            operand = operands[number]
            if isinstance(operand, torch.Tensor):
                given[number] = torch.full_like(operand, value)
            else:
                given[number] = [_spread(tensor, kind.values, turn + order) for tensor in operand]
        yield given
        if kind.beside_zeros and len(chosen) == 1:
            yield _beside_zeros(given, chosen[0], kind, turn)


def _beside_zeros(given: list[Any], chosen: int, kind: Kind, turn: int) -> list[Any]:
    """Return the operands with zeros in the first list and beside special values in it, where a lost one shows.

    Beside an ordinary summand it does not. Only between zeros has the difference of two zeros a sign.
    """
    first = [torch.zeros_like(tensor) for tensor in given[0]]
    if chosen != 0:
        return [first, *given[1:]]
    others = given[1:]
    if kind.name == "negative zeros":
        others = [
            [torch.zeros_like(tensor) for tensor in operand] if isinstance(operand, list) and _has_tensors(operand)
            else operand
            for operand in others
        ]  # fmt: skip
    return [[_spread(tensor, kind.values, turn) for tensor in first], *others]


def _spread(tensor: torch.Tensor, values: tuple[float, ...], turn: int) -> torch.Tensor:
    """Return the tensor with special values in turn at some places, the same ones in every operand."""
    if tensor.numel() == 1:
        return torch.full_like(tensor, values[turn % len(values)])
    changed = tensor.clone()
    for place in range(1, tensor.numel(), _EVERY):
        changed[place] = values[(place // _EVERY + turn) % len(values)]
    return changed


def _check_one(check: Checker, function: Function, label: str, kind: Kind, call: _Call, device: torch.device) -> None:
    try:
        exact, host = call.wide().on(torch.device("cpu")), call.on(torch.device("cpu"))
    except _ERRORS:  # the host has no such call
        return
    for position, (actual, wide, usual) in enumerate(zip(call.on(device), exact, host, strict=True)):
        right = wide.to(usual.dtype)
        if actual.shape != right.shape or actual.dtype != right.dtype:
            continue  # the plain results show it
        what = f"{label}, tensor {position}"
        if not right.dtype.is_floating_point:
            check.equal(actual, usual, what)  # float64 does not hold large integers
            continue
        if kind.name == "subnormal numbers":
            _check_subnormals(check, what, actual, wide, usual)
            continue
        _check_not_finite(check, function, what, actual, right, of_nan=kind.name == "NaN")
        if kind.name == "negative zeros":
            # Nothing overflows, so the order of products and sums does not matter: a division by -0 has one sign.
            agreed = torch.where(right.isinf() & (right == usual), right, torch.zeros_like(right))
            check.that(not ((agreed != 0) & (actual != agreed)).any(), f"{what}: where it is infinite, and its sign")
        if function.name not in OPEN and kind.name == "infinities":
            check.that(not ((right == 0) & (actual != 0) & _is_special(right)).any(), f"{what}: what has to be zero")
        if facts(function.operator.partition(".")[0]).signed_zeros:
            signs = zero_signs(actual, right)
            check.that(signs.right, f"{what}: {signs}")


def _is_special(tensor: torch.Tensor) -> torch.Tensor:
    places = torch.arange(max(1, tensor.numel())).reshape(tensor.shape) if tensor.dim() else torch.ones(())
    return places % _EVERY == 1


def _check_not_finite(
    check: Checker, function: Function, what: str, actual: torch.Tensor, right: torch.Tensor, *, of_nan: bool
) -> None:
    if facts(function.operator).open_for_nan:
        return
    # No number and no infinity comes from NaN.
    lost = right.isnan() & ~actual.isnan() if of_nan else actual.isfinite() & ~right.isfinite()
    check.that(not lost.any(), f"{what}: {int(lost.sum())} results have lost a special value")
    if function.name not in OPEN:
        check.equal(actual.isnan(), right.isnan(), f"{what}: where it is NaN")
        check.equal(actual.isposinf(), right.isposinf(), f"{what}: where it is infinite")
        check.equal(actual.isneginf(), right.isneginf(), f"{what}: where it is negatively infinite")


def _check_subnormals(
    check: Checker, what: str, actual: torch.Tensor, exact: torch.Tensor, usual: torch.Tensor
) -> None:
    """Check that no result has lost half of what it is both in float64 and on the host, and none is infinite alone."""
    limit = torch.finfo(usual.dtype)
    least = (exact.abs() / 2).clamp_min(limit.smallest_normal * limit.eps * _STEPS)
    lost = (actual.double().abs() < least) & (usual.double().abs() >= least)
    lost |= ~actual.isfinite() & exact.isfinite() & usual.isfinite()
    check.that(not lost.any(), f"{what}: {int(lost.sum())} results have lost a subnormal number")
