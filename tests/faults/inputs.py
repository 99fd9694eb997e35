"""Families B and E: a kernel misreads an input's layout, or computes with less than it got."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from conformance.coverage.databases import tensors_of

from .fault import Fault, Flags, Hits, Kind, Target, size_class
from .overloads import INDICES, is_written, kind_of, operator_of, schema
from .overriding import Behaviour, Call
from .values import channels_last, expanded, offset, over_tensors, strided, with_change

Change = Callable[[torch.Tensor], torch.Tensor | None]


def _misread(change: Change) -> Callable[[Fault, Hits], Behaviour]:
    """Return a behaviour's maker: one input is replaced by what ``change`` makes of it, unless that is None."""

    def behave(fault: Fault, hit: Hits) -> Behaviour:
        place = int(fault.place)

        def behaviour(call: Call) -> Any:
            value = call.values[place]
            changed = [change(tensor) for tensor in tensors_of(value)]
            if all(tensor is None for tensor in changed):
                return call.run()
            hit()
            left = iter(changed)
            values = list(call.values)
            values[place] = over_tensors(value, lambda tensor: _or(next(left), tensor))
            return call.run(values)

        return behaviour

    return behave


def _or(changed: torch.Tensor | None, tensor: torch.Tensor) -> torch.Tensor:
    return tensor if changed is None else changed


def _tensor_places(kernel: str, flags: Flags) -> Iterator[tuple[str, set[str]]]:
    """Yield the places of inputs that some call gave a tensor, with their flags."""
    for place, argument in enumerate(schema(kernel).arguments):
        seen = set(flags.get(str(place), ()))
        if "Tensor" in kind_of(argument) and not is_written(argument) and any(_is_dtype(flag) for flag in seen):
            yield str(place), seen


def _is_dtype(flag: str) -> bool:
    return isinstance(getattr(torch, flag, None), torch.dtype)


# --- family B: layouts ------------------------------------------------------------------------------------------------


def _contiguous_strides(shape: torch.Size) -> list[int]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(1, size)
    return strides[::-1]


def _span(tensor: torch.Tensor) -> int:
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def in_order(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory of a tensor read as if it were contiguous."""
    return tensor.as_strided(tensor.shape, _contiguous_strides(tensor.shape), tensor.storage_offset())


def _without_strides(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return what a kernel reads that takes the memory for contiguous."""
    if tensor.is_contiguous() or tensor.numel() < 2 or 0 in tensor.stride() or _span(tensor) < tensor.numel():
        return None
    return in_order(tensor)


def _without_offset(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return what a kernel reads that starts at the first byte of the memory."""
    return tensor.as_strided(tensor.shape, tensor.stride(), 0) if tensor.storage_offset() and tensor.numel() else None


def _without_expansion(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return a tensor that is zero where the expanded dimension repeats."""
    repeated = [
        at
        for at, (stride, size) in enumerate(zip(tensor.stride(), tensor.shape, strict=True))
        if not stride and size > 1
    ]
    if not repeated or not tensor.numel():
        return None
    copy = tensor.clone(memory_format=torch.contiguous_format)
    copy.narrow(repeated[0], 1, copy.shape[repeated[0]] - 1).zero_()
    return copy


def _without_channels_last(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return what a kernel reads that takes channels-last memory for contiguous."""
    if tensor.dim() != 4 or tensor.is_contiguous() or not tensor.is_contiguous(memory_format=torch.channels_last):
        return None
    return in_order(tensor)


def _without_scalars(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return a zero in place of a tensor without dimensions."""
    return torch.zeros_like(tensor) if tensor.dim() == 0 else None


def _layout_places(kernel: str, flags: Flags) -> Iterator[Target]:
    for place, seen in _tensor_places(kernel, flags):
        if size_class(list(seen)) > 1:
            yield place, ""


def _image_places(kernel: str, flags: Flags) -> Iterator[Target]:
    # Whether four dimensions make sense is known from what the databases gave.
    for place, seen in _tensor_places(kernel, flags):
        if "channels_last" in seen:
            yield place, ""


def _scalar_places(kernel: str, flags: Flags) -> Iterator[Target]:
    for place, seen in _tensor_places(kernel, flags):
        if "0-dim" in seen:
            yield place, ""


def _has_flag(flag: str) -> Callable[[Fault, Flags], bool]:
    return lambda fault, flags: flag in flags.get(fault.place, ())


def _laid_out(
    change: Callable[[torch.Tensor], torch.Tensor],
) -> Callable[[Fault, dict[str, Any]], Iterator[dict[str, Any]]]:
    def variants(fault: Fault, values: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield from with_change(values, schema(fault.target).arguments[int(fault.place)].name, change)

    return variants


def _misreading(name: str, flag: str, change: Change, make: Any, targets: Any = _layout_places) -> Kind:
    return Kind("B", name, targets, _misread(change), _has_flag(flag), _laid_out(make))


# --- family E: arithmetic ---------------------------------------------------------------------------------------------


def _through(dtype: torch.dtype, wide: Callable[[torch.dtype], bool]) -> Change:
    def change(tensor: torch.Tensor) -> torch.Tensor | None:
        return tensor.to(dtype).to(tensor.dtype) if wide(tensor.dtype) and tensor.numel() else None

    return change


def _without_nan(tensor: torch.Tensor) -> torch.Tensor | None:
    if not tensor.is_floating_point() or tensor.itemsize < 2 or not tensor.numel():
        return None
    return torch.where(tensor != tensor, torch.zeros_like(tensor), tensor)


def _without_infinity(tensor: torch.Tensor) -> torch.Tensor | None:
    if not tensor.is_floating_point() or tensor.itemsize < 2 or not tensor.numel():
        return None
    limit = torch.finfo(tensor.dtype).max
    return tensor.clamp(-limit, limit)


def _without_negative_zero(tensor: torch.Tensor) -> torch.Tensor | None:
    return tensor + 0.0 if tensor.is_floating_point() and tensor.itemsize > 1 and tensor.numel() else None


def _without_subnormals(tensor: torch.Tensor) -> torch.Tensor | None:
    if not tensor.is_floating_point() or tensor.itemsize < 2 or not tensor.numel():
        return None
    tiny = torch.finfo(tensor.dtype).smallest_normal
    return torch.where(tensor.abs() < tiny, torch.zeros_like(tensor), tensor)


def _places_of(*dtypes: str) -> Callable[[str, Flags], Iterator[Target]]:
    def targets(kernel: str, flags: Flags) -> Iterator[Target]:
        for place, seen in _tensor_places(kernel, flags):
            if seen & set(dtypes):
                yield place, ""

    return targets


def _any_of(*dtypes: str) -> Callable[[Fault, Flags], bool]:
    return lambda fault, flags: bool(set(flags.get(fault.place, ())) & set(dtypes))


def _with_values(dtype_of: Callable[[torch.Tensor], bool], values: tuple[float, ...]) -> Any:
    """Return variants that put special values in front of an input's own, the first one alone, and behind them.

    Of a matrix, a kernel may read one triangle, or may take each other infinity for the first one.
    """

    def put(chosen: tuple[float, ...], *, behind: bool) -> Callable[[torch.Tensor], torch.Tensor]:
        def change(tensor: torch.Tensor) -> torch.Tensor:
            if not dtype_of(tensor) or not tensor.numel():
                return tensor
            flat = tensor.clone(memory_format=torch.contiguous_format).view(-1)
            special = torch.tensor(chosen, dtype=torch.float64 if tensor.is_floating_point() else torch.int64)
            count = min(len(chosen), flat.numel())
            flat.narrow(0, flat.numel() - count if behind else 0, count).copy_(special[:count])
            return flat.view(tensor.shape)

        return change

    kinds = [put(values, behind=False), *([put(values[:1], behind=False)] if len(values) > 1 else [])]
    every = [_laid_out(change) for change in (*kinds, put(values[:1], behind=True))]

    def variants(fault: Fault, given: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for laid_out in every:
            yield from laid_out(fault, given)

    return variants


def _tiny(fault: Fault, values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    name = schema(fault.target).arguments[int(fault.place)].name

    def change(tensor: torch.Tensor) -> torch.Tensor:
        return tensor * torch.finfo(tensor.dtype).smallest_normal / 8 if tensor.is_floating_point() else tensor

    yield from with_change(values, name, change)


def _is_float(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.itemsize > 1


def _is_integer(tensor: torch.Tensor) -> bool:
    return tensor.dtype in (torch.int32, torch.int64)


def _real(fault: Fault, values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    name = schema(fault.target).arguments[int(fault.place)].name
    yield from with_change(
        values, name, lambda t: t * 0.7310585786300049 if t.is_floating_point() or t.is_complex() else t
    )


def _narrowed(*dtypes: str) -> Callable[[str, Flags], Iterator[Target]]:
    """Return targets of kernels that do more than look for zeros and signs, which narrower numbers have too."""

    def targets(kernel: str, flags: Flags) -> Iterator[Target]:
        if operator_of(kernel) not in _OF_SIGNS:
            yield from _places_of(*dtypes)(kernel, flags)

    return targets


#: Kernels that look for zeros or signs alone.
_OF_SIGNS = frozenset(f"aten::{name}" for name in ("sgn", "sign", "signbit", "logical_not", "logical_and", "logical_or",
                                                   "logical_xor", "isnan", "nonzero", "any", "all"))  # fmt: skip


def _scalars(kernel: str, flags: Flags) -> Iterator[Target]:
    for place, argument in enumerate(schema(kernel).arguments):
        if kind_of(argument) in ("number", "float", "Optional[number]", "Optional[float]") and flags.get(str(place)):
            yield str(place), ""


def _scalar_narrowed(fault: Fault, hit: Hits) -> Behaviour:
    place = int(fault.place)

    def behaviour(call: Call) -> Any:
        value = call.values[place]
        if type(value) not in (float, int):
            return call.run()
        narrow = torch.tensor(value, dtype=torch.float64).to(torch.bfloat16).item()
        narrow = int(narrow) if type(value) is int else narrow
        if narrow == value:
            return call.run()
        hit()
        return call.run([*call.values[:place], narrow, *call.values[place + 1 :]])

    return behaviour


def _odd_scalars(fault: Fault, values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    name = schema(fault.target).arguments[int(fault.place)].name
    if name in values:
        yield from ({**values, name: value} for value in (1.2345678, 0.1, 257))


def _integers(*dtypes: str) -> Callable[[str, Flags], Iterator[Target]]:
    """Return targets of integers; an index names a place in memory, and no memory has as many as a float rounds."""

    def targets(kernel: str, flags: Flags) -> Iterator[Target]:
        for place, _ in _places_of(*dtypes)(kernel, flags):
            name = schema(kernel).arguments[int(place)].name
            if name not in (*INDICES, *_MORE_INDICES) and operator_of(kernel) not in (*_OF_FLOATS, *_OF_SIGNS):
                yield place, ""

    return targets


#: Further names of indices and lengths, which are as small.
_MORE_INDICES = ("targets", "offset2bag", "bag_size", "input_lengths", "target_lengths", "lengths", "maximum_indices")
#: Kernels that give one result for all integers.
_OF_FLOATS = ("aten::isnan", "aten::isinf", "aten::isfinite", "aten::signbit")
#: Kernels that give one result for the largest number and for infinity, by their signs or by what they tend to.
_BLIND = frozenset(f"aten::{name}" for name in ("sgn", "sign", "signbit", "copysign", "logical_not", "logical_and",
                                                "logical_or", "logical_xor", "isnan", "exp", "exp2", "expm1", "cosh",
                                                "sinh", "tanh", "sigmoid", "erf", "erfc", "atan"))  # fmt: skip
#: Kernels that give one result for NaN and for 0: the sign of NaN is 0, and a sum without NaN leaves it out.
_BLIND_TO_NAN = frozenset(("aten::sgn", "aten::sign", "aten::nansum"))


def _unlike_nan(kernel: str, flags: Flags) -> Iterator[Target]:
    if operator_of(kernel) not in _BLIND_TO_NAN:
        yield from _places_of(*_FLOATS)(kernel, flags)


def _unlike_infinity(kernel: str, flags: Flags) -> Iterator[Target]:
    if operator_of(kernel) not in _BLIND:
        yield from _places_of(*_FLOATS)(kernel, flags)


def _infinities(fault: Fault, values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield values with infinities, also beside the largest number and infinity in the place of a number."""
    argued = {argument.name: kind_of(argument) for argument in schema(fault.target).arguments}
    numbers = [name for name in values if argued.get(name) in ("number", "Optional[number]")]
    given = [values, *({**values, name: limit} for name in numbers for limit in _LIMITS)]
    for each in given:
        yield from _with_infinities(fault, each)


_with_infinities = _with_values(_is_float, (float("inf"), -float("inf")))
_LIMITS = (torch.finfo(torch.float32).max, float("inf"))
_FLOATS = ("float16", "bfloat16", "float32", "float64")
_EDGES = ((1 << 24) + 1, (1 << 53) + 1, -(1 << 24) - 1)

KINDS = [
    _misreading("strides", "strided", _without_strides, strided),
    _misreading("offset", "offset", _without_offset, offset),
    _misreading("expansion", "expanded", _without_expansion, expanded),
    _misreading("channels_last", "channels_last", _without_channels_last, channels_last, _image_places),
    _misreading("0-dim", "0-dim", _without_scalars, lambda tensor: tensor, _scalar_places),
    Kind("E", "bfloat16", _narrowed("float32", "float64"),
         _misread(_through(torch.bfloat16, lambda d: d in (torch.float32, torch.float64))),
         _any_of("float32", "float64"), _real),
    Kind("E", "float32", _narrowed("float64"), _misread(_through(torch.float32, lambda d: d is torch.float64)),
         _any_of("float64"), _real),
    Kind("E", "int through float", _integers("int32", "int64"),
         _misread(_through(torch.float32, lambda d: d in (torch.int32, torch.int64))), _any_of("int32", "int64"),
         _with_values(_is_integer, _EDGES)),
    Kind("E", "int through double", _integers("int64"), _misread(_through(torch.float64, lambda d: d is torch.int64)),
         _any_of("int64"), _with_values(_is_integer, _EDGES)),
    Kind("E", "scalar", _scalars, _scalar_narrowed, lambda fault, flags: bool(flags.get(fault.place)), _odd_scalars),
    Kind("E", "NaN", _unlike_nan, _misread(_without_nan), _any_of(*_FLOATS),
         _with_values(_is_float, (float("nan"),))),
    Kind("E", "infinity", _unlike_infinity, _misread(_without_infinity), _any_of(*_FLOATS), _infinities),
    Kind("E", "negative zero", _places_of(*_FLOATS), _misread(_without_negative_zero), _any_of(*_FLOATS),
         _with_values(_is_float, (-0.0,))),
    Kind("E", "subnormals", _places_of(*_FLOATS), _misread(_without_subnormals), _any_of(*_FLOATS), _tiny),
]  # fmt: skip
