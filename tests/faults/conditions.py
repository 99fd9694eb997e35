"""Conditions under which a kernel is broken: one dtype, a long axis, a place in a sequence, a thread, two arguments.

Families A to E break a kernel in all its calls. A backend has one kernel for each dtype, chooses an algorithm by a
size, and keeps what it has prepared for a call. A condition lets a fault of those families act in some calls alone.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from conformance.coverage.databases import tensors_of
from conformance.coverage.flags import dtypes_of

from .fault import Fault, Flags, Hits, Kind, Target, size_class
from .overloads import is_written, kind_of, schema
from .overriding import Behaviour, Call
from .values import (
    alternatives,
    expanded,
    is_tensors,
    long_axes,
    offset,
    over_tensors,
    strided,
    with_change,
    without_dims,
)

#: Separates the detail of a kind from the word of a condition.
_SEPARATOR = " | "
#: Calls the true kernel or the broken one.
Around = Callable[[Call, Behaviour], Any]
Values = dict[str, Any]


@dataclass(frozen=True)
class Condition:
    """Calls in which a fault acts.

    ``words`` yields the words of this condition for a kernel with these flags and a place. ``make`` returns what
    decides about each call, with a memory of its own. ``needs`` says from recorded flags if the condition can be met.
    ``variants`` changes the values of a direct call so that it is met.
    """

    name: str
    words: Callable[[str, Flags, str], Iterator[str]]
    make: Callable[[str], Around]
    needs: Callable[[str, str, Flags], bool]
    variants: Callable[[str, str, Values], Iterator[Values]]


def under(family: str, base: Kind, condition: Condition) -> Kind:
    """Return a kind whose faults are those of another kind in the calls that meet a condition."""

    def split(fault: Fault) -> tuple[Fault, str]:
        detail, _, word = fault.detail.rpartition(_SEPARATOR)
        return Fault(base.family, base.name, fault.target, fault.place, detail), word

    def targets(kernel: str, flags: Flags) -> Iterator[Target]:
        for place, detail in base.targets(kernel, flags):
            for word in condition.words(kernel, flags, place):
                yield place, f"{detail}{_SEPARATOR}{word}"

    def behave(fault: Fault, hit: Hits) -> Behaviour:
        usual, word = split(fault)
        broken, around = base.behave(usual, hit), condition.make(word)
        return lambda call: around(call, broken)

    def needs(fault: Fault, flags: Flags) -> bool:
        usual, word = split(fault)
        return base.needs(usual, flags) and condition.needs(fault.target, word, flags)

    def variants(fault: Fault, values: Values) -> Iterator[Values]:
        usual, word = split(fault)
        for given in itertools.chain([values], condition.variants(fault.target, word, values)):
            yield given
            yield from base.variants(usual, given)

    return Kind(family, f"{base.name}, {condition.name}", targets, behave, needs, variants)


def _if(met: Callable[[Call], bool]) -> Around:
    return lambda call, broken: broken(call) if met(call) else call.run()


def _unchanged(kernel: str, word: str, values: Values) -> Iterator[Values]:
    yield from ()


# --- one dtype --------------------------------------------------------------------------------------------------------


def dtype_of(values: Sequence[Any]) -> torch.dtype | None:
    """Return the dtype of a call: that of its first tensor of floating point, or else of its first tensor."""
    found = [tensor.dtype for value in values for tensor in tensors_of(value)]
    return next((dtype for dtype in found if dtype.is_floating_point), found[0] if found else None)


def _dtypes(kernel: str, flags: Flags, place: str) -> Iterator[str]:
    """Yield the dtypes that a call of the kernel may have: ``dtype_of`` looks at arguments alone."""
    given = {at: set(dtypes_of(seen)) for at, seen in flags.items() if at.isdigit()}
    found = set().union(*given.values()) - {"complex32"}
    required = (str(at) for at, argument in enumerate(schema(kernel).arguments) if kind_of(argument) == "Tensor")
    # The probabilities of a draw, or the parts of a complex number, are of floating point in every call.
    if any(given.get(at) and all(_is_floating(name) for name in given[at]) for at in required):
        found = {name for name in found if _is_floating(name)}
    yield from sorted(found)


def _is_floating(name: str) -> bool:
    dtype: torch.dtype = getattr(torch, name)
    return dtype.is_floating_point


def _float_dtypes(kernel: str, flags: Flags, place: str) -> Iterator[str]:
    seen = set(_dtypes(kernel, flags, place))
    yield from (dtype for dtype in ("float16", "bfloat16", "float32", "float64") if dtype in seen)


def _in_dtype(kernel: str, word: str, values: Values) -> Iterator[Values]:
    """Yield the values in the wanted dtype; indices and truth values stay."""
    wanted, now = getattr(torch, word), dtype_of(list(values.values()))
    if wanted is not now or "dtype" in values:
        changed = {
            name: over_tensors(value, lambda t: _cast(t, wanted) if t.dtype is now else t)
            for name, value in values.items()
        }
        yield {**changed, **({"dtype": wanted} if "dtype" in values else {})}


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the tensor in a dtype; of truth values, some of each, in an order without a period."""
    if dtype is not torch.bool:
        return tensor.to(dtype)
    return ((torch.arange(tensor.numel()) * 40503 >> 7) % 2).bool().view(tensor.shape)


ONE_DTYPE = Condition(
    "in one dtype",
    _dtypes,
    lambda word: _if(lambda call: dtype_of(call.values) is getattr(torch, word)),
    lambda kernel, word, flags: any(word in seen for seen in flags.values()),
    _in_dtype,
)

#: The same for special values, which integers do not have.
ONE_FLOAT_DTYPE = replace(ONE_DTYPE, words=_float_dtypes)

# --- sequences --------------------------------------------------------------------------------------------------------

_SEQUENCES = (
    "every 2", "every 3", "every 7", "after 3", "after 20", "another shape", "the same shape", "another dtype",
    "after a refusal", "without gradients", "with gradients",
)  # fmt: skip


class _Sequence:
    """What is remembered of the calls before."""

    def __init__(self, word: str) -> None:
        self._word, self._calls, self._before, self._refused = word, 0, [()], False

    def __call__(self, call: Call, broken: Behaviour) -> Any:
        self._calls += 1
        found = tensors_of(call.values)
        now = [(tuple(tensor.shape), tensor.dtype) for tensor in found]
        is_met, self._before = self._meets(now), now
        refused, self._refused = self._refused, False
        try:
            return broken(call) if is_met or (refused and self._word == "after a refusal") else call.run()
        except Exception:
            self._refused = True
            raise

    def _meets(self, now: list[Any]) -> bool:
        kind, _, number = self._word.partition(" ")
        if kind == "every":
            return self._calls % int(number) == 0
        if kind == "after" and number.isdigit():
            return self._calls > int(number)
        shapes, dtypes = [[fact[at] for fact in now if fact] for at in (0, 1)]
        before_shapes, before_dtypes = [[fact[at] for fact in self._before if fact] for at in (0, 1)]
        first = not before_shapes
        return {
            "another shape": not first and shapes != before_shapes,
            "the same shape": shapes == before_shapes,
            "another dtype": not first and dtypes != before_dtypes,
            "without gradients": not torch.is_grad_enabled(),
            "with gradients": torch.is_grad_enabled(),
        }.get(self._word, False)


SEQUENCE = Condition(
    "in a sequence",
    lambda kernel, flags, place: iter(_SEQUENCES),
    _Sequence,
    lambda kernel, word, flags: bool(flags),
    _unchanged,
)

# --- threads ----------------------------------------------------------------------------------------------------------

#: Where a recorded map has the threads of a kernel's calls, and the flag of those that Python started.
THREADS, OTHER_THREAD = "threads", "another thread"


def on_another_thread() -> bool:
    """Return whether Python has started this thread. Threads of autograd are not of these."""
    thread = threading.current_thread()
    return thread is not threading.main_thread() and not isinstance(thread, threading._DummyThread)


ANOTHER_THREAD = Condition(
    "on another thread",
    lambda kernel, flags, place: iter([OTHER_THREAD]),
    lambda word: _if(lambda call: on_another_thread()),
    lambda kernel, word, flags: OTHER_THREAD in flags.get(THREADS, ()),
    _unchanged,
)

# --- another argument -------------------------------------------------------------------------------------------------

_LAYOUTS: dict[str, tuple[Callable[[torch.Tensor], bool], Callable[[torch.Tensor], torch.Tensor]]] = {
    "strided": (lambda t: t.numel() > 1 and not t.is_contiguous(), strided),
    "offset": (lambda t: t.storage_offset() > 0, offset),
    "expanded": (lambda t: t.numel() > 1 and 0 in t.stride(), expanded),
    "0-dim": (lambda t: t.dim() == 0, without_dims),
}


def _others(kernel: str, flags: Flags, place: str) -> Iterator[str]:
    """Yield what another argument may be at the same time: a layout of a tensor, or other than its default."""
    if kernel.startswith("aten::_copy_from"):
        return  # its second tensor is the one that it writes
    for at, argument in enumerate(schema(kernel).arguments):
        seen = set(flags.get(str(at), ()))
        if str(at) == place or is_written(argument) or not seen:
            continue
        if "Tensor" in kind_of(argument):
            # Whether no dimensions make sense is known from what was given.
            usual = [layout for layout in _LAYOUTS if layout != "0-dim" or layout in seen]
            yield from (f"{at} {layout}" for layout in usual if dtypes_of(sorted(seen)) and size_class([*seen]) > 1)
        elif argument.has_default_value() and argument.name not in ("generator", "memory_format", "non_blocking"):
            yield f"{at} set"


def _with_other(word: str) -> Around:
    at, _, state = word.partition(" ")
    place = int(at)

    def met(call: Call) -> bool:
        value = call.values[place]
        if state == "set":
            return bool(value != call.arguments[place].default_value)
        return any(_LAYOUTS[state][0](tensor) for tensor in tensors_of(value))

    return _if(met)


def _can_be(kernel: str, word: str, flags: Flags) -> bool:
    at, _, state = word.partition(" ")
    seen = set(flags.get(at, ()))
    if state != "set":
        return state in seen
    return bool(seen - {f"={schema(kernel).arguments[int(at)].default_value}"})


def _given_other(kernel: str, word: str, values: Values) -> Iterator[Values]:
    at, _, state = word.partition(" ")
    argument = schema(kernel).arguments[int(at)]
    if state != "set":
        yield from with_change(values, argument.name, _LAYOUTS[state][1])
    elif argument.name in values:
        for other in alternatives(values[argument.name], kind_of(argument)):
            yield {**values, argument.name: other}
        if is_tensors(values[argument.name]):
            yield values


ANOTHER_ARGUMENT = Condition("with another argument", _others, _with_other, _can_be, _given_other)

# --- long axes --------------------------------------------------------------------------------------------------------

_LENGTHS = (8, 10, 12, 16)
_AXES = {"first": 0, "second": 1, "last": -1}


def long_words(kernel: str, flags: Flags, place: str) -> Iterator[str]:
    """Yield an axis and a length for each."""
    yield from (f"{axis} {power}" for axis in _AXES for power in _LENGTHS)


def beyond(tensor: torch.Tensor, word: str) -> torch.Tensor | None:
    """Return the part of a tensor beyond a length along an axis; None if it ends before."""
    axis, _, power = word.partition(" ")
    dim, length = _AXES[axis], 2 ** int(power)
    if not -tensor.dim() <= dim < tensor.dim() or tensor.shape[dim] <= length:
        return None
    return tensor.narrow(dim, length, tensor.shape[dim] - length)


def can_be_long(fault: Fault, flags: Flags) -> bool:
    """Return whether a recorded tensor has so many elements."""
    least = int(fault.detail.rpartition(" ")[2]) + 1
    return max((size_class(seen) for seen in flags.values()), default=0) >= least


def made_long(fault: Fault, values: Values) -> Iterator[Values]:
    """Yield the values with one of their sizes beyond the fault's length, and then with another part beyond it."""
    length = 2 ** int(fault.detail.rpartition(" ")[2])
    yield from long_axes(values, length + 3)
    # A maximum of repeated rows is that of the first ones.
    for given in long_axes(values, length + 3):
        yield {name: over_tensors(value, lambda t: _raised(t, fault.detail)) for name, value in given.items()}


def _raised(tensor: torch.Tensor, word: str) -> torch.Tensor:
    """Return the tensor with larger numbers beyond a length; integers, which may be indices, stay."""
    if not tensor.is_floating_point() or beyond(tensor, word) is None:
        return tensor
    copy = tensor.clone()
    part = beyond(copy, word)
    assert part is not None
    part.mul_(1.5).add_(1)
    return copy
