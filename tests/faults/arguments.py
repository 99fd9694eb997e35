"""Family A: a kernel ignores an argument. It computes with the default, with a neighbour, or with a constant."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from conformance.coverage.flags import dtypes_of

from .fault import Fault, Flags, Hits, Kind, Target
from .overloads import is_written, kind_of, schema
from .overriding import Behaviour, Call
from .values import alternatives, cut, is_tensors

#: What a kernel takes instead of an argument without a default.
_CONSTANTS = {"int": 0, "float": 1.0, "number": 1, "bool": False, "Optional[Tensor]": None}


#: Arguments that say what the kernel else finds out: without them the result is the same.
_HINTS = (
    ("aten::repeat_interleave.Tensor", "output_size"),
    ("aten::isin.Tensor_Tensor_out", "assume_unique"),
    ("aten::isin.Tensor_Scalar_out", "assume_unique"),
    ("aten::isin.Scalar_Tensor_out", "assume_unique"),
)


def _inputs(kernel: str) -> list[tuple[int, Any]]:
    every = enumerate(schema(kernel).arguments)
    return [(i, each) for i, each in every if not is_written(each) and (kernel, each.name) not in _HINTS]


def _is_plain(argument: Any) -> bool:
    """Return whether an argument is computed with: not a generator, a device, a layout or a flag of allocation."""
    return not argument.name.endswith("dtype") and argument.name not in (
        "device",
        "layout",
        "pin_memory",
        "non_blocking",
        "generator",
        "memory_format",
    )


def _defaults(kernel: str, flags: Flags) -> Iterator[Target]:
    for place, argument in _inputs(kernel):
        if argument.has_default_value() and _is_plain(argument):
            yield str(place), ""


def _neighbours(kernel: str, flags: Flags) -> Iterator[Target]:
    inputs = [(place, argument) for place, argument in _inputs(kernel) if _is_plain(argument)]
    for place, argument in inputs:
        others = [at for at, other in inputs if at != place and kind_of(other) == kind_of(argument)]
        if "Tensor" in kind_of(argument):
            # A target of integers is never taken for the input.
            given = dtypes_of(flags.get(str(place), ()))
            others = [at for at in others if given & dtypes_of(flags.get(str(at), ()))]
        if others:
            nearest = min(others, key=lambda at: (abs(at - place), at))
            yield str(place), str(nearest)


def _constants(kernel: str, flags: Flags) -> Iterator[Target]:
    for place, argument in _inputs(kernel):
        if not argument.has_default_value() and _is_plain(argument) and kind_of(argument) in _CONSTANTS:
            yield str(place), repr(_CONSTANTS[kind_of(argument)])


def _replacing(find: Any) -> Any:
    """Return a behaviour's maker: the value at the fault's place is replaced by what ``find`` returns."""

    def behave(fault: Fault, hit: Hits) -> Behaviour:
        place = int(fault.place)

        def behaviour(call: Call) -> Any:
            values, other = list(call.values), find(fault, call)
            if not _differ(values[place], other):
                return call.run()
            hit()
            values[place] = other
            return call.run(values)

        return behaviour

    return behave


def _differ(value: Any, other: Any) -> bool:
    if isinstance(value, torch.Tensor) and isinstance(other, torch.Tensor):
        # A kernel that mixes up two tensors gets away with it only where both fit.
        return value is not other and value.shape == other.shape and value.dtype == other.dtype
    if is_tensors(value) and is_tensors(other):
        return len(value) == len(other) and all(_differ(a, b) for a, b in zip(value, other, strict=True))
    if isinstance(value, torch.Tensor) or isinstance(other, torch.Tensor):
        return value is None or other is None
    return bool(value != other)


def _set_somewhere(fault: Fault, flags: Flags) -> bool:
    """Return whether some recorded value differs from what the fault takes instead."""
    seen = set(flags.get(fault.place, ()))
    if fault.kind == "neighbour":
        return bool(seen)
    argument = schema(fault.target).arguments[int(fault.place)]
    other = argument.default_value if fault.kind == "default" else _CONSTANTS.get(kind_of(argument))
    return bool(seen - {f"={other}", f"={float(other)}" if type(other) is int else ""})


def _variants(fault: Fault, values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    argument = schema(fault.target).arguments[int(fault.place)]
    if argument.name in values:
        for other in alternatives(values[argument.name], kind_of(argument)):
            yield {**values, argument.name: other}
        if fault.kind == "neighbour" and isinstance(values[argument.name], torch.Tensor):
            # Two tensors can only be mixed up where they have one shape.
            yield from (cut(values, size) for size in (2, 1))


KINDS = [
    Kind(
        "A", "default", _defaults,
        _replacing(lambda fault, call: call.arguments[int(fault.place)].default_value), _set_somewhere, _variants,
    ),
    Kind(
        "A", "neighbour", _neighbours,
        _replacing(lambda fault, call: call.values[int(fault.detail)]), _set_somewhere, _variants,
    ),
    Kind(
        "A", "constant", _constants,
        _replacing(lambda fault, call: _CONSTANTS[kind_of(call.arguments[int(fault.place)])]),
        _set_somewhere, _variants,
    ),
]  # fmt: skip
