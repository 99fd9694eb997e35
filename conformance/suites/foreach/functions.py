"""The functions on lists, with the operator that each applies to every tensor."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from conformance.process import last_call

Lists = Sequence[torch.Tensor]


@dataclass(frozen=True)
class ListCall:
    """One overload: the arguments after the first list, and the same arguments for the tensor at a position.

    ``only`` holds the dtypes whose tensors it is for; empty is for all. ``overload`` is the name of the overload where
    the arguments alone do not choose it: PyTorch takes a tensor of one number for a number.
    """

    label: str
    arguments: Callable[[Lists], tuple[Any, ...]]
    options: dict[str, Any]
    single: Callable[[torch.Tensor, int], Any]
    only: tuple[torch.dtype, ...] = ()
    overload: str = ""

    def fits(self, dtype: torch.dtype) -> bool:
        """Return whether it is for tensors of this dtype."""
        return not self.only or dtype in self.only


@dataclass(frozen=True)
class Function:
    """Function on lists: its name without ``_foreach_``, the operator that a claim has to cover, and its overloads.

    ``kin`` are functions of the same operator that have no case of their own.
    """

    name: str
    operator: str
    calls: tuple[ListCall, ...]
    integers: bool = False
    in_place: bool = True
    out_of_place: bool = True
    kin: tuple[Function, ...] = ()

    def exists(self, place: str) -> bool:
        """Return whether the installed torch has the function, out of place ("") or in place ("_")."""
        return hasattr(torch, f"_foreach_{self.name}{place}")

    def has(self, call: ListCall, place: str) -> bool:
        """Return whether the installed torch has an overload."""
        name = f"_foreach_{self.name}{place}"
        return not call.overload or hasattr(getattr(torch.ops.aten, name), call.overload)

    def run(self, call: ListCall, place: str) -> Callable[..., Any]:
        """Return what runs an overload that the installed torch has."""
        name = f"_foreach_{self.name}{place}"
        last_call.note(last_call.text_of(f"{name} with {call.label or 'a list'}"), last_call.ON_DEVICE)
        found: Callable[..., Any]
        found = getattr(getattr(torch.ops.aten, name), call.overload) if call.overload else getattr(torch, name)
        return found


_UNARY = (
    *(
        "exp",
        "acos",
        "asin",
        "atan",
        "cos",
        "cosh",
        "log",
        "log10",
        "log2",
        "tan",
        "tanh",
        "sin",
        "sinh",
        "sqrt",
        "rsqrt",
    ),
    *("erf", "erfc", "expm1", "log1p", "frac", "reciprocal", "sigmoid", "lgamma"),
)
_UNARY_OF_INTEGERS = ("neg", "ceil", "floor", "round", "trunc", "abs", "sign")
#: As many as the longest list has tensors, and more.
_NUMBERS = (2, 3, 1, 4, 2, 5, 1, 2, 3, 4, 2) * 100
#: Numbers of ten bits and more, among the elements: bfloat16 does not hold them, and bounds of this size act.
_ODD = 261 / 512
_ODD_BOUND = 4 + 5 / 128
_ODD_NUMBERS = tuple(number + 5 / 512 for number in _NUMBERS)
#: An order of a norm that bfloat16 does not hold.
_ODD_ORDER = 1 + 3 / 512
_FLOAT32, _FLOATS, _INTEGERS = (torch.float32,), (torch.float32, torch.bfloat16), (torch.int64,)
#: The power of a larger integer may not fit into 64 bits.
_LARGEST_BASE, _EXPONENTS = 99, 4


def _other(tensor: torch.Tensor) -> torch.Tensor:
    """Return a second operand: the same numbers in another order, away from 0 and of another sign."""
    return -tensor.flatten().flip(0).reshape(tensor.shape) + 2


def _unary(name: str, operator: str = "", **flags: Any) -> Function:
    function = getattr(torch, name)
    call = ListCall("", lambda first: (), {}, lambda tensor, i: function(tensor))
    return Function(name, operator or name, (call,), **flags)


def _binary(
    name: str, reference: Callable[..., Any], operator: str, *, tensor: bool, integers: bool = True
) -> Function:
    calls = [ListCall("a list", lambda first: ([_other(t) for t in first],), {}, lambda t, i: reference(t, _other(t)))]
    calls.append(
        ListCall(
            "tensors without dimensions",
            lambda first: ([tensor.new_tensor(number) for tensor, number in zip(first, _NUMBERS, strict=False)],),
            {},
            lambda t, i: reference(t, _NUMBERS[i]),
        )
    )
    calls += _with_numbers("", 3, _NUMBERS, (), reference, tensor=tensor)
    # Times a number below one, the largest number stays finite, and infinity does not.
    odd = _ODD if name == "mul" else _ODD_BOUND
    calls += _with_numbers("odd ", odd, _ODD_NUMBERS, _FLOAT32, reference, tensor=tensor)
    if name in ("add", "sub"):
        calls += _with_alpha("alpha", 2, (), reference, tensor=tensor)
        calls += _with_alpha("odd alpha", _ODD, _FLOAT32, reference, tensor=tensor)
    return Function(name, operator, tuple(calls), integers=integers)


def _with_numbers(
    kind: str,
    one: float,
    many: Sequence[float],
    only: tuple[torch.dtype, ...],
    reference: Callable[..., Any],
    *,
    tensor: bool,
) -> Iterator[ListCall]:
    """Yield the overloads with a number, with numbers, and with a tensor of one number."""
    yield ListCall(
        f"an {kind}number" if kind else "a number", lambda f: (one,), {}, lambda t, i: reference(t, one), only
    )
    yield ListCall(f"{kind}numbers", lambda f: (list(many[: len(f)]),), {}, lambda t, i: reference(t, many[i]), only)
    if tensor:
        yield ListCall(
            f"a tensor of an {kind}number" if kind else "a tensor",
            lambda f: (f[0].new_tensor(one),), {}, lambda t, i: reference(t, one), only, "Tensor",
        )  # fmt: skip


def _with_alpha(
    label: str, alpha: float, only: tuple[torch.dtype, ...], reference: Callable[..., Any], *, tensor: bool
) -> Iterator[ListCall]:
    """Yield the overloads with a factor of the second operand."""
    options = {"alpha": alpha}
    yield ListCall(
        label, lambda f: ([_other(t) for t in f],), options, lambda t, i: reference(t, alpha * _other(t)), only
    )
    if tensor:
        yield ListCall(
            f"a tensor and {label}", lambda f: (f[0].new_tensor(3),), options, lambda t, i: reference(t, alpha * 3),
            only, "Tensor",
        )  # fmt: skip


def _powers() -> Function:
    """Return the powers. Those of integers have exponents that are not negative, and fit into 64 bits."""
    floats = [replace(call, only=call.only or _FLOATS) for call in _binary("pow", torch.pow, "pow", tensor=False).calls]
    integers = (
        ListCall("exponents", lambda f: ([_exponents(t) for t in f],), {}, lambda t, i: t ** _exponents(t), _INTEGERS),
        ListCall("an exponent", lambda f: (1,), {}, lambda t, i: t, _INTEGERS),
        ListCall(
            "numbers as exponents",
            lambda f: ([_exponent(t, i) for i, t in enumerate(f)],),
            {},
            lambda t, i: t ** _exponent(t, i),
            _INTEGERS,
        ),
    )
    return Function("pow", "pow", (*floats, *integers), integers=True)


def _exponents(tensor: torch.Tensor) -> torch.Tensor:
    small = tensor.abs()
    return torch.where(small > _LARGEST_BASE, 1, small % _EXPONENTS)


def _exponent(tensor: torch.Tensor, position: int) -> int:
    is_small = not bool((tensor.abs() > _LARGEST_BASE).any())
    return _NUMBERS[position] % _EXPONENTS if is_small else 1


def _pointwise(name: str, reference: Callable[..., torch.Tensor], *, integers: bool = False) -> Function:
    def lists(first: Lists) -> tuple[Any, ...]:
        return [_other(t) for t in first], [_other(t) + 1 for t in first]

    def single(t: torch.Tensor, value: float) -> torch.Tensor:
        return t + value * reference(_other(t), _other(t) + 1)

    return Function(
        name,
        name,
        (
            ListCall("a number", lists, {"value": 3}, lambda t, i: single(t, 3)),
            ListCall(
                "numbers", lambda f: (*lists(f), list(_NUMBERS[: len(f)])), {}, lambda t, i: single(t, _NUMBERS[i])
            ),
            ListCall("an odd number", lists, {"value": _ODD}, lambda t, i: single(t, _ODD), _FLOAT32),
        ),
        integers=integers,
    )


def _lerp() -> Function:
    def mixed(t: torch.Tensor, weight: torch.Tensor | float) -> torch.Tensor:
        return t + weight * (_other(t) - t)

    calls = (
        ListCall("a number", lambda f: ([_other(t) for t in f], 0.25), {}, lambda t, i: mixed(t, 0.25)),
        ListCall("an odd number", lambda f: ([_other(t) for t in f], _ODD), {}, lambda t, i: mixed(t, _ODD), _FLOAT32),
        ListCall("a list", lambda f: ([_other(t) for t in f], [t * t for t in f]), {}, lambda t, i: mixed(t, t * t)),
        ListCall(
            "numbers",
            lambda f: ([_other(t) for t in f], [number / 8 for number in _NUMBERS[: len(f)]]),
            {},
            lambda t, i: mixed(t, _NUMBERS[i] / 8),
            overload="ScalarList",
        ),
    )
    return Function("lerp", "lerp", calls)


def _norm(order: float, tensor: torch.Tensor, position: int) -> torch.Tensor:
    found: torch.Tensor = torch.linalg.vector_norm(tensor, order)
    return found


def _norms() -> Iterator[ListCall]:
    for order in (1, 2, float("inf"), _ODD_ORDER):
        yield ListCall(
            f"order {order}",
            lambda first: (),
            {"ord": order},
            functools.partial(_norm, order),
            _FLOAT32 if order == _ODD_ORDER else (),
        )


def functions() -> dict[str, Function]:
    """Return every function on lists by name."""
    clone = ListCall("", lambda f: (), {}, lambda t, i: t)
    found = [_unary(name) for name in _UNARY] + [_unary(name, integers=True) for name in _UNARY_OF_INTEGERS]
    found += [
        _binary("add", torch.add, "add", tensor=True),
        _binary("sub", torch.sub, "sub", tensor=False),
        _binary("mul", torch.mul, "mul", tensor=True),
        _binary("div", torch.div, "div.no_rounding_mode", tensor=True, integers=False),
        _binary("clamp_min", _at_least, "clamp_min", tensor=False),
        _binary("clamp_max", _at_most, "clamp_max", tensor=False),
        _binary("maximum", _at_least, "maximum", tensor=False),
        _binary("minimum", _at_most, "minimum", tensor=False),
        _powers(),
        _pointwise("addcmul", torch.mul, integers=True),
        _pointwise("addcdiv", torch.div),
        _lerp(),
        Function(
            "copy", "clone", (ListCall("", lambda f: ([_other(t) for t in f],), {}, lambda t, i: _other(t)),),
            integers=True, out_of_place=False,
            kin=(Function("clone", "clone", (clone,), integers=True, in_place=False),),
        ),
        Function(
            "zero", "zeros_like", (ListCall("", lambda f: (), {}, lambda t, i: torch.zeros_like(t)),),
            integers=True, out_of_place=False,
        ),
        Function("norm", "linalg.vector_norm", tuple(_norms()), in_place=False),
        _unary("max", operator="max.reduction_no_dim", in_place=False),
    ]  # fmt: skip
    return {function.name: function for function in found}


def _at_least(tensor: torch.Tensor, other: Any) -> torch.Tensor:
    return torch.maximum(tensor, torch.as_tensor(other, dtype=tensor.dtype))


def _at_most(tensor: torch.Tensor, other: Any) -> torch.Tensor:
    return torch.minimum(tensor, torch.as_tensor(other, dtype=tensor.dtype))
