"""Lists with special values, lists that do not fit, and second lists in other arrangements of memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from conformance.judging.checker import Checker
from conformance.numerics.compare import plain, zero_signs
from conformance.numerics.nearness import Near, near
from conformance.numerics.transfer import copied_with_memory, memory_behind
from conformance.suites.operators.calls.facts import facts

from .functions import Function, ListCall, Lists

#: Functions whose result for infinities depends on the order of their products and sums.
OPEN = ("lerp", "addcmul", "addcdiv", "norm")
#: Large integers come first: the second operand is two less the list in reverse, and products have to fit.
_INTEGERS = ((1 << 24) + 3, (1 << 53) + 3, -(1 << 24) - 1, 3, 2, 1, 1)
_FLOATS = (float("inf"), -0.0, 0.5, -1.5, 0.0, -float("inf"), 2.0)
META = torch.device("meta")
#: Tensors in long lists: a launch takes as many as its arguments hold, for example 110 or 320, and chunks of 1,024.
LENGTHS = (111, 321, 1025)
#: Tensors in the long list of every other overload: more than the arguments of any common launch hold.
ONE_LENGTH = (331,)
_NAN = (float("nan"), 1.0, 0.25, float("nan"), 3.0)


def strided(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a copy on the device with the strides and the offset of a host tensor."""
    if tensor.is_contiguous() and not tensor.storage_offset():
        return tensor.to(device, copy=True)
    return copied_with_memory(tensor, device)


def arranged(arguments: tuple[Any, ...], first: Lists, device: torch.device) -> tuple[Any, ...]:
    """Return host arguments on the device, each list's tensors in the arrangement of the first list's tensors."""
    return tuple(
        [strided(_as_arranged(tensor, model), device) for tensor, model in zip(argument, first, strict=True)]
        if isinstance(argument, list) and isinstance(argument[0], torch.Tensor)
        else moved(argument, device)
        for argument in arguments
    )


def moved(argument: Any, device: torch.device) -> Any:
    """Return a copy of a host argument on the device: a tensor, a list of tensors or numbers, or a number.

    Arguments are computed on the host, so that the function on lists is all that the device computes.
    """
    if isinstance(argument, (list, tuple)):
        return type(argument)(moved(item, device) for item in argument)
    return argument.to(device, copy=True) if isinstance(argument, torch.Tensor) else argument


def _as_arranged(tensor: torch.Tensor, model: torch.Tensor) -> torch.Tensor:
    """Return equal values with the strides and the offset of another tensor of the same shape."""
    if (model.is_contiguous() and not model.storage_offset()) or tensor.shape != model.shape:
        return tensor.contiguous()
    if 0 in model.stride():
        return tensor[:, :1].expand(tensor.shape)  # all columns are one
    memory = torch.ones_like(memory_behind(model), dtype=tensor.dtype)
    view = memory.as_strided(model.shape, model.stride(), model.storage_offset())
    return view.copy_(tensor)


# --- values -----------------------------------------------------------------------------------------------------------


def check_values(
    check: Checker, function: Function, call: ListCall, place: str, device: torch.device, dtype: torch.dtype
) -> None:
    """Check that special values give what the operator gives for them."""
    host = _special(function, dtype)
    first, arguments = moved(host, device), moved(call.arguments(host), device)
    found = function.run(call, place)(first, *arguments, **call.options)
    found = first if place else found
    for position, (actual, tensor) in enumerate(zip(found, host, strict=True)):
        right = call.single(tensor.double() if tensor.is_floating_point() else tensor, position).to(dtype)
        label = f"_foreach_{function.name}{place} with {call.label or 'a list'} of {tensor.tolist()}"
        _check_special(check, function, label, plain(actual), right)


def _special(function: Function, dtype: torch.dtype) -> list[torch.Tensor]:
    if not dtype.is_floating_point:
        values = torch.tensor(_INTEGERS, dtype=dtype)
        return [values, values[3:].clone(), -values]  # either list has the larger numbers once
    values = torch.tensor(_FLOATS, dtype=dtype)
    # Twice: each of several numbers meets them.
    found = [] if function.name in OPEN else [values, values.clone()]
    if not facts(function.operator).open_for_nan:
        found.append(torch.tensor(_NAN, dtype=dtype))
    return found


def _check_special(check: Checker, function: Function, label: str, actual: torch.Tensor, right: torch.Tensor) -> None:
    if not right.dtype.is_floating_point:
        check.equal(actual, right, label)
        return
    check.equal(actual.isnan(), right.isnan(), f"{label}: where it is NaN")
    check.equal(actual.isposinf(), right.isposinf(), f"{label}: where it is infinite")
    check.equal(actual.isneginf(), right.isneginf(), f"{label}: where it is negatively infinite")
    if facts(function.operator.partition(".")[0]).signed_zeros:
        signs = zero_signs(actual, right)
        check.that(signs.right, f"{label}: {signs}")


def check_large_exponents(check: Checker, device: torch.device) -> None:
    """Check that -1 to the power of an odd number is -1, also of numbers that are even in float32 or float64."""
    host = [torch.tensor([-1, 1, -1, 0])]
    exponents = [torch.tensor([(1 << 24) + 1, (1 << 53) + 1, (1 << 53) + 1, (1 << 53) + 1])]
    for place in ("", "_"):
        first, power = moved(host, device), moved(exponents, device)
        found = getattr(torch, f"_foreach_pow{place}")(first, power)
        check.equal(plain((first if place else found)[0]), host[0], f"_foreach_pow{place} with large odd exponents")


# --- long lists -------------------------------------------------------------------------------------------------------


def check_long(
    check: Checker, function: Function, call: ListCall, places: list[str], device: torch.device, host: Lists
) -> None:
    """Check the results of lists with more tensors than the arguments of one launch hold."""
    is_floating, others = host[0].is_floating_point(), call.arguments(host)
    wide = [tensor.double() if is_floating else tensor for tensor in host]
    right = torch.stack([call.single(tensor, position) for position, tensor in enumerate(wide)])
    for place in places:
        first = list(torch.stack(list(host)).to(device).unbind())
        arguments = [
            list(torch.stack(argument).to(device).unbind())
            if isinstance(argument, list) and isinstance(argument[0], torch.Tensor)
            else moved(argument, device)
            for argument in others
        ]
        found = function.run(call, place)(first, *arguments, **call.options)
        label = f"_foreach_{function.name}{place} with {call.label or 'a list'}, {len(host)} tensors"
        actual = torch.stack([plain(each) for each in (first if place else found)])
        if is_floating:
            near(check, label, actual, right, Near.FORWARD)
        else:
            check.equal(actual, right.to(actual.dtype), label)


# --- refusals ---------------------------------------------------------------------------------------------------------


def check_refusals(
    check: Checker, function: Function, call: ListCall, place: str, device: torch.device, dtype: torch.dtype
) -> None:
    """Check that the function refuses what has no meaning on any device.

    The host refuses it, and so does meta, or a result would not fit the dtype of the list that it is written to.
    """
    run = function.run(call, place)
    for name, first, arguments in _wrong(call, dtype):
        has_meaning = not _refuses(run, first, arguments, call, META)
        if has_meaning and not (place and _is_wider(function, call, first, arguments)):
            continue
        if _refuses(run, first, arguments, call, torch.device("cpu")):
            refused = _refuses(run, first, arguments, call, device)
            label = f"_foreach_{function.name}{place} with {call.label or 'a list'}"
            check.that(refused, f"{label} took {name}, which PyTorch refuses")


def _is_wider(function: Function, call: ListCall, first: Lists, arguments: Sequence[Any]) -> bool:
    """Return whether results have a dtype that PyTorch does not cast to that of the first list."""
    try:
        found = function.run(call, "")(moved(list(first), META), *moved(tuple(arguments), META), **call.options)
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError):
        return False
    return any(not torch.can_cast(new.dtype, old.dtype) for new, old in zip(found, first, strict=True))


def _wrong(call: ListCall, dtype: torch.dtype) -> Iterator[tuple[str, list[torch.Tensor], tuple[Any, ...]]]:
    first = [torch.ones(6, dtype=dtype), torch.ones(2, 3, dtype=dtype)]
    arguments = call.arguments(first)
    for place, argument in enumerate(arguments):
        for name, wrong in _others(argument):
            yield f"{name} as argument {place + 1}", first, (*arguments[:place], wrong, *arguments[place + 1 :])
    yield "a list without tensors", [], arguments
    if not dtype.is_floating_point:
        return
    # A result of this dtype cannot be written into integers.
    yield "integers in the first list alone", [tensor.to(torch.int64) for tensor in first], arguments


def _others(argument: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(argument, list):
        yield "a shorter list", argument[:1]
        if isinstance(argument[0], torch.Tensor):
            shorter = argument[0][:4] if argument[0].dim() else argument[0].expand(5)
            yield "a tensor of another shape", [shorter, argument[1]]
            yield "a complex tensor", [argument[0].to(torch.complex64), argument[1]]
        else:
            yield "complex numbers", [1j, 2j]
            yield "fractions", [0.5, 1.5]
    elif isinstance(argument, torch.Tensor):
        yield "a tensor with several elements", argument.expand(5)
    else:
        yield "a complex number", 1j
        yield "a fraction", 1.5


def _refuses(run: Any, first: Lists, arguments: Sequence[Any], call: ListCall, device: torch.device) -> bool:
    try:
        given = moved(list(first), device)
        result = run(given, *moved(tuple(arguments), device), **call.options)
        for tensor in result or given:
            if tensor.device.type != "meta":
                plain(tensor)  # a device may refuse late
    except (RuntimeError, TypeError, ValueError, IndexError):
        return True
    return False
