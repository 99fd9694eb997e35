"""Family G: a kernel does not refuse what it must: an exception is swallowed, or an index is clamped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from conformance.coverage.databases import tensors_of

from .fault import Fault, Flags, Hits, Kind, Target
from .overloads import INDICES, is_written, kind_of, schema
from .overriding import Behaviour, Call
from .values import is_tensors, over_tensors, with_change


def _swallowing(fault: Fault, hit: Hits) -> Behaviour:
    def behaviour(call: Call) -> Any:
        try:
            result = call.run()
            hit.computed += 1
            return result
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            if isinstance(error, (NotImplementedError, torch.OutOfMemoryError)):
                raise
            result = _instead(call)
            if result is _NOTHING:
                hit.refused = True
                raise
            hit()
            return result

    return behaviour


_NOTHING = object()


def _instead(call: Call) -> Any:
    """Return something for a call that was to be refused: what it writes, or zeros like its first tensor."""
    written = [value for argument, value in zip(call.arguments, call.values, strict=True) if is_written(argument)]
    returns = call.schema.returns
    if not returns:
        return None
    if written:
        return written[0] if len(returns) == 1 else tuple(written)
    if [item.type.kind() for item in returns] == ["ListType"]:
        listed = next((value for value in call.values if isinstance(value, (list, tuple)) and is_tensors(value)), None)
        return _NOTHING if listed is None else [torch.zeros_like(tensor) for tensor in listed]
    first = next(iter(tensors_of(call.values)), None)
    if first is None or any(item.type.kind() != "TensorType" for item in returns):
        return _NOTHING
    zeros = tuple(torch.zeros_like(first) for _ in returns)
    return zeros[0] if len(zeros) == 1 else zeros


def _clamping(fault: Fault, hit: Hits) -> Behaviour:
    place = int(fault.place)

    def behaviour(call: Call) -> Any:
        bound = _bound(call)
        if bound is None or not any(_is_index(tensor) for tensor in tensors_of(call.values[place])):
            return call.run()
        hit()
        values = list(call.values)
        values[place] = over_tensors(values[place], lambda t: t.clamp(0, max(0, bound - 1)) if _is_index(t) else t)
        return call.run(values)

    return behaviour


def _is_index(tensor: torch.Tensor) -> bool:
    return tensor.dtype in (torch.int64, torch.int32) and tensor.numel() > 0


def _bound(call: Call) -> int | None:
    """Return how many places an index may name."""
    by_name = {argument.name: value for argument, value in zip(call.arguments, call.values, strict=True)}
    for name in ("weight", "self", "input"):
        tensor = by_name.get(name)
        if isinstance(tensor, torch.Tensor) and tensor.dim():
            dim = by_name.get("dim", 0)
            if name == "self" and call.name.startswith(("aten::take", "aten::put")):
                return tensor.numel()
            return int(tensor.shape[dim]) if isinstance(dim, int) and -tensor.dim() <= dim < tensor.dim() else None
    number = by_name.get("num_weights")
    return number if isinstance(number, int) else None


def _whole(kernel: str, flags: Flags) -> Iterator[Target]:
    if any(is_tensors_argument(argument) for argument in schema(kernel).arguments):
        yield "", ""


def is_tensors_argument(argument: Any) -> bool:
    """Return whether an argument holds tensors."""
    return "Tensor" in kind_of(argument)


def _index_places(kernel: str, flags: Flags) -> Iterator[Target]:
    for place, argument in enumerate(schema(kernel).arguments):
        is_index = argument.name in INDICES and not is_written(argument)
        if is_index and {"int64", "int32"} & set(flags.get(str(place), ())):
            yield str(place), ""


def _always(fault: Fault, flags: Flags) -> bool:
    return bool(flags)


def invalid(fault: Fault, values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield calls that a device must refuse, more or less: shapes, dtypes, indices and numbers that do not fit."""
    for name, value in values.items():
        if is_tensors(value):
            yield from with_change(values, name, lambda t: t[..., :-1] if t.dim() and t.shape[-1] > 1 else t)
            yield from with_change(values, name, lambda t: t[:-1] if t.dim() and t.shape[0] > 1 else t)
            yield from with_change(values, name, lambda t: t.unsqueeze(0))
            yield from with_change(
                values, name, lambda t: t.to(torch.int64) if t.is_floating_point() else t.to(torch.float32)
            )
            if name in INDICES:
                yield from _out_of_range(name, values)
        elif type(value) is int:
            yield from ({**values, name: other} for other in (-7, 99, 0))
        elif isinstance(value, float):
            yield from ({**values, name: other} for other in (-1.5, float("nan")))
        elif isinstance(value, (list, tuple)) and value and all(type(item) is int for item in value):
            yield {**values, name: [item + 7 for item in value]}
            yield {**values, name: [-item - 1 for item in value]}
            yield {**values, name: [*value, 1, 1, 1]}
    for name in (name for name, value in values.items() if is_tensors(value)):
        for dtype in (torch.bool, torch.complex64):
            yield from with_change(values, name, lambda t: t.to(dtype))  # noqa: B023 - used at once
        if isinstance(values[name], (list, tuple)):
            yield from ({**values, name: values[name][:length]} for length in (len(values[name]) - 1, 0))


def _out_of_range(name: str, values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for number in (100_000, -100_000):
        yield from with_change(values, name, lambda t: t + number if _is_index(t) else t)  # noqa: B023 - used at once


def _far_indices(fault: Fault, values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    name = schema(fault.target).arguments[int(fault.place)].name
    yield from _out_of_range(name, values)


KINDS = [
    Kind("G", "swallowed", _whole, _swallowing, _always, invalid),
    Kind("G", "clamped", _index_places, _clamping, _always, _far_indices),
]
