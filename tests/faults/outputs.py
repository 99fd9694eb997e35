"""Families C and D: a kernel's result is wrong somewhere; it shares memory, or has other metadata, than it should."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from conformance.coverage.databases import tensors_of

from .fault import Fault, Flags, Hits, Kind, Target, size_class
from .overloads import VECTORS, has_one_element, is_written, kind_of, operator_of, schema
from .overriding import Behaviour, Call
from .values import channels_last, cut, larger, over_tensors, with_change

_TAILS = tuple(range(8, 21, 2))
_BLOCK, _SPARSE = 256, 1 << 16
#: What the first element of an output is counted in: elements above which a kind has something to spoil.
_LEAST = {"last": 1, "block": _BLOCK, "sparse": _SPARSE - 1, "row": 3, "nothing": 0}
_OTHER_DTYPE = {
    torch.float32: torch.float64,
    torch.float64: torch.float32,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.int64: torch.int32,
    torch.int32: torch.int64,
    torch.bool: torch.uint8,
    torch.complex64: torch.complex128,
    torch.complex128: torch.complex64,
}
#: Kernels whose results have no values.
_WITHOUT_VALUES = ("aten::_copy_from", "aten::new_empty", "aten::rename")


def outputs_of(call: Call, result: Any) -> list[torch.Tensor]:
    """Return what a call wrote: its results, or its written arguments where it returns nothing."""
    found = list(tensors_of(result))
    if not found:
        written = [value for argument, value in zip(call.arguments, call.values, strict=True) if is_written(argument)]
        found = list(tensors_of(written))
    return found


def other_values(tensor: torch.Tensor) -> torch.Tensor:
    """Return values of the same dtype that all differ from the finite ones of ``tensor``."""
    if tensor.dtype is torch.bool:
        return tensor.logical_not()
    return tensor * 2 + 1 if tensor.is_floating_point() or tensor.is_complex() else tensor + 1


def rewrite(tensor: torch.Tensor, edit: Callable[[torch.Tensor], None]) -> None:
    """Edit a tensor's elements in their logical order, whatever its strides."""
    flat = tensor.contiguous().view(-1)
    edit(flat)
    if not tensor.is_contiguous():
        tensor.copy_(flat.view(tensor.shape))


def _is_editable(tensor: torch.Tensor) -> bool:
    return tensor.dtype in _OTHER_DTYPE or tensor.dtype in (torch.int8, torch.uint8, torch.int16)


def _part(fault: Fault) -> Callable[[torch.Tensor], None]:
    def spoil(part: torch.Tensor) -> None:
        part.copy_(other_values(part))

    edits: dict[str, Callable[[torch.Tensor], Any]] = {
        "last": lambda flat: spoil(flat[-1:]),
        "block": lambda flat: spoil(flat[_BLOCK::_BLOCK]),
        "sparse": lambda flat: spoil(flat[_SPARSE - 1 :: _SPARSE]),
        "nothing": lambda flat: flat.zero_(),
        "tail": lambda flat: flat[2 ** int(fault.detail or 0) :].zero_(),
    }
    return edits[fault.kind]


def _least(fault: Fault) -> int:
    return 2 ** int(fault.detail) if fault.kind == "tail" else _LEAST[fault.kind]


def _spoiled(fault: Fault, hit: Hits) -> Behaviour:
    place = int(fault.place.removeprefix("r"))

    def behaviour(call: Call) -> Any:
        result = call.run()
        outputs = outputs_of(call, result)
        if place < len(outputs):
            output = outputs[place]
            if output.numel() > _least(fault) and _is_editable(output):
                if fault.kind == "row":
                    if output.dim() < 2 or output.shape[-2] < 2 or not output.shape[-1]:
                        return result
                    row = output[..., -1, :]
                    row.copy_(other_values(row))
                else:
                    rewrite(output, _part(fault))
                hit()
        return result

    return behaviour


def _returns(kernel: str) -> int:
    """Return how many places a kernel's results have."""
    returns = len(schema(kernel).returns)
    if returns:
        return returns
    return 1 if any(is_written(argument) for argument in schema(kernel).arguments) else 0


def results(kernel: str, flags: Flags) -> Iterator[Target]:
    if kernel in _WITHOUT_VALUES or all(
        return_.type.kind() == "IntType" for return_ in schema(kernel).returns or [None] if return_
    ):
        return
    for place in range(_returns(kernel)):
        yield f"r{place}", ""


def _some_results(kernel: str, flags: Flags) -> Iterator[Target]:
    if _returns(kernel) > 1:
        yield from results(kernel, flags)


def _of_several(kernel: str, flags: Flags) -> Iterator[Target]:
    """Yield results that have a second element."""
    if not has_one_element(kernel, flags):
        yield from results(kernel, flags)


def _of_rows(kernel: str, flags: Flags) -> Iterator[Target]:
    if operator_of(kernel) not in VECTORS:
        yield from _of_several(kernel, flags)


def _tails(kernel: str, flags: Flags) -> Iterator[Target]:
    for place, _ in _of_several(kernel, flags):
        for power in _TAILS:
            yield place, str(power)


def _is_long(fault: Fault, flags: Flags) -> bool:
    return size_class(flags.get("r", ())) >= (_least(fault) + 1).bit_length() or _writes_nothing_recorded(flags)


def _writes_nothing_recorded(flags: Flags) -> bool:
    # A kernel that returns nothing has no flags of results; what it writes is among its arguments.
    return not flags.get("r")


def _enlarged(fault: Fault, values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    # The largest first: a tail that starts late shows only there.
    yield from larger(values, max(8, _least(fault) + 77))
    if fault.kind == "row":
        yield {name: over_tensors(value, _in_rows) for name, value in values.items()}


def _in_rows(tensor: torch.Tensor) -> torch.Tensor:
    """Return a matrix in place of a vector: a function of single elements may be known for vectors alone."""
    return torch.stack([tensor, tensor.flip(0), tensor]) if tensor.dim() == 1 else tensor


# --- family D ---------------------------------------------------------------------------------------------------------


def _aliased(fault: Fault, hit: Hits) -> Behaviour:
    place = int(fault.place)

    def behaviour(call: Call) -> Any:
        given, result = call.values[place], call.run()
        first = result[0] if isinstance(result, tuple) else result
        if not (isinstance(first, torch.Tensor) and isinstance(given, torch.Tensor)) or not first.numel():
            return result
        if first.shape != given.shape or first.dtype != given.dtype or 0 in given.stride():
            return result
        hit()
        given.copy_(first)
        alias = given.as_strided(given.shape, given.stride(), given.storage_offset())
        return (alias, *result[1:]) if isinstance(result, tuple) else alias

    return behaviour


def _overwritten(fault: Fault, hit: Hits) -> Behaviour:
    place = int(fault.place)

    def behaviour(call: Call) -> Any:
        result, given = call.run(), next(iter(tensors_of(call.values[place])), None)
        if given is not None and given.numel() and _is_editable(given) and 0 not in given.stride():
            written = [
                t
                for argument, v in zip(call.arguments, call.values, strict=True)
                if is_written(argument)
                for t in tensors_of(v)
            ]
            # x.add_(y) passes x as an input and as the output.
            if not any(tensor.untyped_storage().data_ptr() == given.untyped_storage().data_ptr() for tensor in written):
                hit()
                rewrite(given, lambda flat: flat[-1:].copy_(other_values(flat[-1:])) and None)
        return result

    return behaviour


def _replaced(change: Callable[[torch.Tensor], torch.Tensor | None]) -> Callable[[Fault, Hits], Behaviour]:
    """Return a behaviour's maker: one result is replaced by what ``change`` makes of it, unless that is None."""

    def behave(fault: Fault, hit: Hits) -> Behaviour:
        place = int(fault.place.removeprefix("r"))

        def behaviour(call: Call) -> Any:
            result = call.run()
            many = list(result) if isinstance(result, (tuple, list)) else [result]
            if place >= len(many) or not isinstance(many[place], torch.Tensor):
                return result
            other = change(many[place])
            if other is None:
                return result
            hit()
            many[place] = other
            return type(result)(many) if isinstance(result, (tuple, list)) else other

        return behaviour

    return behave


def _other_dtype(tensor: torch.Tensor) -> torch.Tensor | None:
    other = _OTHER_DTYPE.get(tensor.dtype)
    return None if other is None else tensor.to(other)


def _other_device(tensor: torch.Tensor) -> torch.Tensor | None:
    count = torch.get_device_module(tensor.device.type).device_count()
    if count < 2:
        return None
    return tensor.to(torch.device(tensor.device.type, (tensor.device.index + 1) % count))


def _other_format(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return a contiguous result in place of a channels-last one. Nothing promises other strides."""
    if tensor.dim() != 4 or tensor.is_contiguous() or not tensor.is_contiguous(memory_format=torch.channels_last):
        return None
    return tensor.contiguous()


def _is_functional(kernel: str) -> bool:
    returns = schema(kernel).returns
    return bool(returns) and all(item.alias_info is None for item in returns)


def _fresh_results(kernel: str, flags: Flags) -> Iterator[Target]:
    if _is_functional(kernel):
        for place, item in enumerate(schema(kernel).returns):
            if item.type.kind() == "TensorType":
                yield f"r{place}", ""


def _images(kernel: str, flags: Flags) -> Iterator[Target]:
    if any("channels_last" in seen for seen in flags.values()):
        yield from _fresh_results(kernel, flags)


def _inputs_like_results(kernel: str, flags: Flags) -> Iterator[Target]:
    if _is_functional(kernel) and schema(kernel).returns[0].type.kind() == "TensorType":
        yield from tensor_inputs(kernel, flags)


def tensor_inputs(kernel: str, flags: Flags) -> Iterator[Target]:
    for place, argument in enumerate(schema(kernel).arguments):
        if "Tensor" in kind_of(argument) and not is_written(argument) and set(flags.get(str(place), ())) - {"=None"}:
            yield str(place), ""


def _always(fault: Fault, flags: Flags) -> bool:
    return bool(flags)


def _as_they_are(fault: Fault, values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from with_change(values, "", channels_last)
    yield cut(values, 1)  # a reduction of one element has the shape of its input


KINDS = [
    Kind("C", "last", _of_several, _spoiled, _is_long, _enlarged),
    Kind("C", "tail", _tails, _spoiled, _is_long, _enlarged),
    Kind("C", "block", _of_several, _spoiled, _is_long, _enlarged),
    Kind("C", "sparse", _of_several, _spoiled, _is_long, _enlarged),
    Kind("C", "row", _of_rows, _spoiled, _is_long, _enlarged),
    Kind("C", "nothing", _some_results, _spoiled, _is_long, _enlarged),
    Kind("D", "alias", _inputs_like_results, _aliased, _always, _as_they_are),
    Kind("D", "overwritten", tensor_inputs, _overwritten, _always, _as_they_are),
    Kind("D", "dtype", _fresh_results, _replaced(_other_dtype), _always, _as_they_are),
    Kind("D", "device", _fresh_results, _replaced(_other_device), _always, _as_they_are),
    Kind("D", "memory format", _images, _replaced(_other_format), _always, _as_they_are),
]
