"""The words of a reported bug: conditions on a call, and effects, which are data in ``bugs.toml``.

Both name an argument of the operator's schema and a word for it: ``weight strided``, ``input longer 65535 0``. The
argument ``written`` is what a call writes, ``dtype`` the dtype of a call.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from conformance.coverage.databases import tensors_of
from tests.faults import conditioned
from tests.faults.conditions import dtype_of
from tests.faults.fault import Fault, Hits
from tests.faults.outputs import other_values, outputs_of, rewrite
from tests.faults.overriding import Call
from tests.faults.values import over_tensors

from . import operators, sequences

Tensors = list[torch.Tensor]
Test = Callable[[Tensors, list[str]], bool]


def _any(test: Callable[[torch.Tensor], bool]) -> Test:
    return lambda tensors, words: any(map(test, tensors))


def _longer(tensors: Tensors, words: list[str]) -> bool:
    most, dim = int(words[0]), int(words[1])
    return any(-t.dim() <= dim < t.dim() and t.shape[dim] > most for t in tensors)


def _size(tensors: Tensors, words: list[str]) -> bool:
    least, most, dim = map(int, words)
    return any(-t.dim() <= dim < t.dim() and least <= t.shape[dim] <= most for t in tensors)


def _has(tensors: Tensors, words: list[str]) -> bool:
    if words == ["empty"]:
        return any(not t.numel() for t in tensors)
    number = float(words[0])
    if number != number:
        return any(bool(t.isnan().any()) for t in tensors if t.is_floating_point())
    return any(bool((t == number).any()) for t in tensors if t.is_floating_point())


def _odd_bytes(tensor: torch.Tensor) -> bool:
    return tensor.dtype is torch.bool and bool((tensor.contiguous().view(torch.uint8) > 1).any())


def _ragged(tensors: Tensors, words: list[str]) -> bool:
    block, dim = int(words[0]), int(words[1])
    return any(-t.dim() <= dim < t.dim() and t.shape[dim] % block != 0 for t in tensors)


def _remainder(tensors: Tensors, words: list[str]) -> bool:
    block, rest, dim = map(int, words)
    return any(-t.dim() <= dim < t.dim() and t.shape[dim] % block == rest for t in tensors)


def _between(tensors: Tensors, words: list[str]) -> bool:
    low, high = map(float, words)
    return any(t.numel() > 0 and bool(((t >= low) & (t <= high)).all()) for t in tensors if not t.is_complex())


def _one_of(tensors: Tensors, words: list[str]) -> bool:
    *sizes, dim = map(int, words)
    return any(-t.dim() <= dim < t.dim() and t.shape[dim] in sizes for t in tensors)


def _is_negative_zero(t: torch.Tensor) -> bool:
    return t.is_floating_point() and bool(((t == 0) & t.signbit()).any())


def _is_thin(t: torch.Tensor) -> bool:
    """Return whether a dimension of size 1 has another stride than new memory gives it."""
    return t.dim() == 2 and 1 in t.shape and t.is_contiguous() and t.stride() != (t.shape[1], 1)


def _is_part_of_channels_last(t: torch.Tensor) -> bool:
    """Return whether an image has its channels side by side, and gaps behind each place's channels."""
    return t.dim() == 4 and t.stride(1) == 1 and t.stride(3) > t.shape[1] and not t.is_contiguous()


def _is_near(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and bool(((tensor < 0) & (tensor > -4e-6)).any())


def _channel_above(tensors: Tensors, words: list[str]) -> bool:
    return any(t.dim() > 1 and t.numel() > int(words[0]) * t.shape[1] for t in tensors)


def _is_single_unpacked(t: torch.Tensor) -> bool:
    """Return whether the last dimension has one place and a stride that new memory would not have."""
    return t.dim() > 1 and t.shape[-1] == 1 and t.stride(-1) != 1


def _are_matrices_apart(t: torch.Tensor) -> bool:
    """Return whether dense matrices have gaps between them, as those of a part of a longer cache have."""
    if t.dim() != 3 or not t.numel():
        return False
    is_dense = t[0].is_contiguous() or t[0].mT.is_contiguous()
    return is_dense and len(t) > 1 and t.stride(0) > t[0].numel()


def _has_gaps(t: torch.Tensor) -> bool:
    """Return whether a tensor takes more memory than its numbers do."""
    return t.numel() > 0 and 1 + sum((n - 1) * step for n, step in zip(t.shape, t.stride(), strict=True)) > t.numel()


def _is_transposed(t: torch.Tensor) -> bool:
    return t.dim() == 2 and min(t.shape) > 1 and t.mT.is_contiguous()


def _is_turned_and_ragged(t: torch.Tensor) -> bool:
    """Return whether dimensions are exchanged, and what stands side by side are no multiple of 32."""
    both = list(zip(t.shape, t.stride(), strict=True))
    is_dense = t.numel() > 1 and 1 + sum((size - 1) * step for size, step in both) == t.numel()
    return is_dense and not t.is_contiguous() and any(step == 1 and size > 1 and size % 32 for size, step in both)


def _is_batch_innermost(t: torch.Tensor) -> bool:
    """Return whether the first one of three dimensions stands side by side in memory."""
    return t.dim() == 3 and min(t.shape) > 1 and t.stride(0) == 1


def _is_one_for_the_batch(t: torch.Tensor) -> bool:
    """Return whether one matrix stands for all of a batch."""
    return t.dim() == 3 and len(t) > 1 and t.stride(0) == 0


#: Conditions on the tensors of an argument.
TESTS: dict[str, Test] = {
    "a number": _any(lambda t: t.dim() == 0 and t.is_cpu),
    "odd count": _any(lambda t: t.numel() % 2 == 1),
    "batch innermost": _any(_is_batch_innermost),
    "one for the batch": _any(_is_one_for_the_batch),
    "channel above": _channel_above,
    "dense": _any(torch.Tensor.is_contiguous),
    "strided": _any(lambda t: t.numel() > 1 and not t.is_contiguous()),
    "offset": _any(lambda t: t.storage_offset() > 0),
    "expanded": _any(lambda t: t.numel() > 1 and 0 in t.stride()),
    "0-dim": _any(lambda t: t.dim() == 0),
    "channels_last": _any(
        lambda t: t.dim() == 4 and not t.is_contiguous() and t.is_contiguous(memory_format=torch.channels_last)
    ),
    "channels_last_3d": _any(
        lambda t: t.dim() == 5 and not t.is_contiguous() and t.is_contiguous(memory_format=torch.channels_last_3d)
    ),
    "one channel last": _any(lambda t: t.dim() == 4 and t.shape[1] == 1 and t.stride(1) == 1 and t.stride(3) == 1
                             and t.shape[2] * t.shape[3] > 1 and t.stride(0) != 1),
    "part of channels_last": _any(_is_part_of_channels_last),
    "rank": lambda tensors, words: any(t.dim() == int(words[0]) for t in tensors),
    "from rank": lambda tensors, words: any(t.dim() >= int(words[0]) for t in tensors),
    "remainder": _remainder,
    "ends empty": lambda tensors, words: bool(tensors) and not tensors[-1].numel(),
    "floating": _any(torch.Tensor.is_floating_point),
    "dtype": lambda tensors, words: any(str(t.dtype) == f"torch.{words[0]}" for t in tensors),
    "integer": _any(lambda t: t.dtype in (torch.int32, torch.int64)),
    "longer": _longer,
    "size": _size,
    "one of": _one_of,
    "in all": lambda tensors, words: sum(t.numel() for t in tensors) > int(words[0]),
    "negative zero": _any(_is_negative_zero),
    "numel": lambda tensors, words: any(
        t.numel() == int(words[1]) if words[0] == "is" else t.numel() > int(words[0]) for t in tensors
    ),
    "has": _has,
    "above": lambda tensors, words: any(bool((t.abs() > float(words[0])).any()) for t in tensors),
    "odd bytes": _any(_odd_bytes),
    "near edge": _any(_is_near),
    "infinite": _any(lambda t: t.is_floating_point() and bool(t.isinf().any())),
    "conjugated": _any(lambda t: t.is_conj()),
    "complex": _any(lambda t: t.is_complex()),
    "view": _any(lambda t: t._is_view()),
    "of two dtypes": lambda tensors, words: len({t.dtype for t in tensors}) > 1,
    "of two shapes": lambda tensors, words: len({t.shape for t in tensors}) > 1,
    "wide": _any(lambda t: t.dim() > 1 and t.shape[-2] < t.shape[-1]),
    "unpacked one": _any(_is_single_unpacked),
    "unsorted": _any(lambda t: t.numel() > 1 and bool((t.flatten().diff() < 0).any())),
    "thin": _any(_is_thin),
    "negative": _any(lambda t: not t.is_complex() and bool((t < 0).any())),
    "repeated": _any(lambda t: len(t.flatten().unique()) < t.numel()),
    "last zero": _any(lambda t: t.numel() > 0 and not bool(t.reshape(-1)[-1])),
    "not a power of two": _any(lambda t: t.dim() > 0 and t.shape[-1].bit_count() != 1),
    "power of two": _any(lambda t: t.dim() > 0 and t.shape[-1] > 1 and t.shape[-1].bit_count() == 1),
    "ragged": _ragged,
    "between": _between,
    "matrices": lambda tensors, words: any(t.dim() > 1 and t.shape[:-2].numel() <= int(words[0]) for t in tensors),
    "columns apart": _any(lambda t: t.dim() > 1 and t.numel() > 1 and t.shape[-1] > 1 and t.stride(-1) != 1),
    "matrices apart": _any(_are_matrices_apart),
    "transposed": _any(_is_transposed),
    "gaps": _any(_has_gaps),
    "turned and ragged": _any(_is_turned_and_ragged),
    "rows": lambda tensors, words: any(t.dim() > 0 and t.numel() > int(words[0]) * t.shape[-1] for t in tensors),
}  # fmt: skip


def meets(word: str, call: Call) -> bool:
    """Return whether a call meets a condition."""
    whole = {
        "reduces all but one": lambda: len(_reduced(call)) == call.values[0].dim() - 1,
        "ranks differ": lambda: len({t.dim() for t in tensors_of(call.values[:2]) if t.dim()}) > 1,
        "no gradients": lambda: not torch.is_grad_enabled(),
        "16 bits": lambda: dtype_of(call.values) in (torch.float16, torch.bfloat16),
        "mixed dtypes": lambda: len({t.dtype for t in tensors_of(call.values)}) > 1,
        "written strided": lambda: TESTS["strided"](list(tensors_of(_written(call))), []),
        "reduces last": lambda: _reduced(call) in ([-1], [call.values[0].dim() - 1]),
        "reduces first": lambda: _reduced(call) in ([0], [-call.values[0].dim()]),
        "reduces all": lambda: len(_reduced(call)) in (0, call.values[0].dim()),
        "group size not a power of two": lambda: operators.group_size(call).bit_count() != 1,
        "deterministic": torch.are_deterministic_algorithms_enabled,
        "beside over 65535": lambda: operators.beside(call) > 65_535,
        "again": lambda: sequences.again(call),
        "first of its shape": lambda: sequences.first_of_its_shape(call),
        "each 4th call": lambda: sequences.every(4),
        "each 500th call": lambda: sequences.every(500),
        "each 10th call": lambda: sequences.every(10),
        "without dim": lambda: place_of(call, "dim") is None,
        "dim left out": lambda: call.values[place_of(call, "dim") or 1] is None,
        "on the second device": lambda: next(iter(tensors_of(call.values))).device.index == 1,
        "self smaller": lambda: operators.is_smaller(call),
        "output smaller": lambda: operators.shrinks(call),
        "inner size smaller": lambda: operators.has_smaller_inner_size(call),
        "after another dtype": lambda: sequences.after_another_dtype(call),
        "after another width": lambda: sequences.after_another_width(call),
        "without grad_scale": lambda: call.values[place_of(call, "grad_scale") or 0] is None,
        "bounds of more dimensions": lambda: operators.has_wider_bounds(call),
        "second to last of one column": lambda: operators.is_beside_one_column(call),
        "rank other than the size": lambda: call.values[0].dim() != call.values[0].shape[call.values[1]],
        "sixth dimension broadcast": lambda: operators.is_sixth_dimension_broadcast(call),
        "unequal steps": lambda: len({float(t) for t in call.values[place_of(call, "state_steps") or 0]}) > 1,
        "same gaps": lambda: operators.has_same_gaps(call),
        "column against row": lambda: operators.is_column_against_row(call),
        "in front of the matrices": lambda: _is_in_front_of_the_matrices(call),
        "each 6th call": lambda: sequences.every(6),
        "along one padded place": lambda: operators.is_along_one_padded_place(call),
        "reduces to an end": lambda: call.values[place_of(call, "reduce") or 4] in ("amin", "amax"),
        "correction left out": lambda: _is_left_out(call, "correction"),
        "dtype left out": lambda: _is_left_out(call, "dtype"),
        "without bias": lambda: call.values[place_of(call, "bias") or 2] is None,
        "size one broadcast": lambda: operators.has_size_one_broadcast(call),
        "other a fraction": lambda: operators.is_other_a_fraction(call),
        "exponent whole": lambda: type(call.values[place_of(call, "exponent") or 1]) is int,
    }
    if word in whole:
        return whole[word]()
    if word in HELD:
        return HELD[word](call)
    name, _, rest = word.partition(" ")
    if name == "dtype":
        return str(dtype_of(call.values)) == f"torch.{rest}"
    if (place := place_of(call, name)) is None:
        return False
    return _meets_of(call, place, rest)


def _is_left_out(call: Call, name: str) -> bool:
    """Return whether a call has this argument, and it was not given."""
    place = place_of(call, name)
    return place is not None and call.values[place] is None


def _reduced(call: Call) -> list[int]:
    value = call.values[place_of(call, "dim") or 1]
    return [value] if isinstance(value, int) else list(value or [])


def _is_in_front_of_the_matrices(call: Call) -> bool:
    """Return whether a reduction is along dimensions of four in front of the last two."""
    dims = call.values[0].dim()
    return dims == 4 and bool(_reduced(call)) and all(dim % dims < dims - 2 for dim in _reduced(call))


def _meets_of(call: Call, place: int, rest: str) -> bool:
    value = call.values[place]
    tensors = list(tensors_of(value))
    if rest.startswith("on ") and rest != "on another device":
        return any((t.device.type == "cpu") is (rest == "on host") for t in tensors)
    if rest == "on another device":
        first = next(iter(tensors_of(call.values)))
        return any(t.device != first.device and t.device.type == first.device.type for t in tensors)
    if rest == "set":
        argument = call.arguments[place]
        return value is not None and (bool(tensors) or value != argument.default_value)
    if match := re.fullmatch(r"is (True|False)", rest):
        return value is (match[1] == "True")
    if rest == "starts with False":
        return not value[0]
    if rest == "strided after dense":
        return sequences.strided_after_dense(call, tensors)
    if rest.startswith("shares "):
        return _shares(tensors, call.values[place_of(call, rest.split()[1]) or 0])
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return _meets_number(value, rest)
    if isinstance(value, (list, tuple)) and not tensors and rest not in TESTS:
        return _meets_numbers(value, rest)
    return _meets_test(tensors, rest)


def _meets_test(tensors: Tensors, rest: str) -> bool:
    for name in sorted(TESTS, key=len, reverse=True):
        if rest == name or rest.startswith(f"{name} "):
            return TESTS[name](tensors, rest.removeprefix(name).split())
    raise ValueError(f"no condition is called {rest}")


def _shares(tensors: Tensors, other: Any) -> bool:
    memory = {tensor.untyped_storage().data_ptr() for tensor in tensors_of(other)}
    return any(tensor.untyped_storage().data_ptr() in memory for tensor in tensors)


def _meets_number(value: float, rest: str) -> bool:
    if rest == "infinite":
        return value in (float("inf"), -float("inf"))
    if match := re.fullmatch(r"(above|below) (\S+)", rest):
        return value > float(match[2]) if match[1] == "above" else value < float(match[2])
    if match := re.fullmatch(r"(is|not) (\S+)", rest):
        return (value == float(match[2])) is (match[1] == "is")
    if match := re.fullmatch(r"no multiple of (\d+)", rest):
        return value % int(match[1]) != 0
    if rest == "float":
        return isinstance(value, float)
    return rest in ("0-dim", "a number")  # a number in the place of a tensor


def _meets_numbers(values: Sequence[Any], rest: str) -> bool:
    if rest == "any negative":
        return any(value < 0 for value in values)
    if match := re.fullmatch(r"any above (\d+)", rest):
        return any(value > int(match[1]) for value in values)
    if rest in NUMBERS:
        return NUMBERS[rest](values)
    match = re.fullmatch(r"all (\d+)", rest)
    return not values if rest == "without entries" else bool(values and match) and set(values) == {int(match[1])}


#: Conditions on an argument that is a list of numbers.
NUMBERS: dict[str, Callable[[Sequence[Any]], bool]] = {
    "differ": lambda values: len(set(values)) > 1,
    "first up to 15": lambda values: len(values) > 0 and 0 < values[0] < 16,
}


def place_of(call: Call, name: str) -> int | None:
    """Return the place of an argument by name; other overloads and kernels have other arguments."""
    return next((at for at, argument in enumerate(call.arguments) if argument.name == name), None)


def _written(call: Call) -> list[Any]:
    return [
        value for argument, value in zip(call.arguments, call.values, strict=True)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]  # fmt: skip


# --- effects on arguments ---------------------------------------------------------------------------------------------


def _dense(t: torch.Tensor) -> torch.Tensor:
    """Return what is read of dense memory; of less memory than that, its start repeated."""
    memory = t.as_strided((_memory(t),), (1,), t.storage_offset())
    return memory.repeat(-(-t.numel() // len(memory)))[: t.numel()].view(t.shape) if t.numel() else t


def _memory(t: torch.Tensor) -> int:
    return t.untyped_storage().nbytes() // t.element_size() - t.storage_offset()


def _once(t: torch.Tensor) -> torch.Tensor:
    copy = t.clone(memory_format=torch.contiguous_format)
    copy.view(-1)[1:] = 0
    return copy


def _low_bit(t: torch.Tensor) -> torch.Tensor:
    return (t.contiguous().view(torch.uint8) & 1).view(torch.bool) if t.dtype is torch.bool else t


def _as_bits(t: torch.Tensor) -> torch.Tensor:
    """Return whole numbers whose bits are read as those of float32."""
    return t.to(torch.int32).contiguous().view(torch.float32)


def _packed(t: torch.Tensor) -> torch.Tensor:
    """Return an image as channels_last without gaps has it in the same memory."""
    channels, height, width = t.shape[1:]
    strides = (height * width * channels, 1, width * channels, channels)
    return t.as_strided(t.shape, strides, t.storage_offset())


def _planes_last(t: torch.Tensor) -> torch.Tensor:
    """Return an image whose planes are taken for places with all their channels."""
    count, channels, height, width = t.shape
    return t.contiguous().view(count, height, width, channels).permute(0, 3, 1, 2).contiguous()


def _first_row(t: torch.Tensor) -> torch.Tensor:
    copy = t.clone(memory_format=torch.contiguous_format)
    copy[1:] = 0
    return copy


def _half_bits(t: torch.Tensor) -> torch.Tensor:
    """Return numbers of 32 bits whose memory is read as float16."""
    memory = t.contiguous().view(-1).view(torch.float16)[: t.numel()]
    return memory.view(t.shape)


def _flat(t: torch.Tensor) -> torch.Tensor:
    return t.reshape(-1).clone()


def _double_offset(t: torch.Tensor) -> torch.Tensor:
    """Return what stands as far behind the start of memory again; zeros behind its end."""
    memory = t.as_strided((t.untyped_storage().nbytes() // t.element_size(),), (1,), 0)
    offset = 2 * t.storage_offset()
    return memory[offset : offset + 1].view(t.shape) if offset < len(memory) else torch.zeros_like(t)


def _small_to_four(t: torch.Tensor) -> torch.Tensor:
    return torch.where((t > 0) & (t < 8), torch.full_like(t, 4), t)


def _rows_packed(t: torch.Tensor) -> torch.Tensor:
    """Return what stands side by side from the start of each row."""
    if t.dim() < 2 or t.stride(-1) == 1:
        return t
    strides = (*t.stride()[:-1], 1)
    return t.as_strided(t.shape, strides, t.storage_offset())


def _matrices_packed(t: torch.Tensor) -> torch.Tensor:
    """Return matrices that are taken for ones without gaps between them."""
    return t.as_strided(t.shape, (t.shape[1] * t.shape[2], *t.stride()[1:]), t.storage_offset())


def _in_words(t: torch.Tensor) -> torch.Tensor:
    """Return integers of 64 bits whose memory is read as ones of 32 bits."""
    return t.contiguous().view(-1).view(torch.int32)[: t.numel()].view(t.shape)


def _first_byte(t: torch.Tensor) -> torch.Tensor:
    """Return as truths whether the lowest byte of each number is not zero."""
    return t.contiguous().view(-1).view(torch.uint8)[:: t.element_size()].view(t.shape) != 0


#: Effects on the tensors of an argument: what the kernel reads in their place.
READS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dense": _dense,
    "copied": lambda t: t.clone(memory_format=torch.contiguous_format),
    "base": lambda t: t.as_strided(t.shape, t.stride(), 0),
    "once": _once,
    "zero": torch.zeros_like,
    "ones": torch.ones_like,
    "first": lambda t: t[:1].expand(t.shape).clone(),
    "low bit": _low_bit,
    "through float32": lambda t: t.to(torch.float32).to(t.dtype),
    "without nan": lambda t: torch.where(t.isnan(), torch.full_like(t, -float("inf")), t),
    "rolled": lambda t: t.roll(1, -1) if t.dtype is torch.bool else t,
    "unconjugated": lambda t: t.conj().resolve_conj() if t.is_conj() else t,
    "bits": _as_bits,
    "half bits": _half_bits,
    "in words": _in_words,
    "first byte": _first_byte,
    "packed": _packed,
    "planes last": _planes_last,
    "first row": _first_row,
    "not": lambda t: ~t if t.dtype is torch.bool else t,
    "through bfloat16": lambda t: t.to(torch.bfloat16).to(t.dtype),
    "half away": lambda t: (t.abs() + 0.5).floor() * t.sign() if t.is_floating_point() else t,
    "signed": lambda t: t.contiguous().view(torch.int8) if t.dtype is torch.uint8 else t,
    "double offset": _double_offset,
    "small to four": _small_to_four,
    "sorted": lambda t: t.sort()[0],
    "rows packed": _rows_packed,
    "matrices packed": _matrices_packed,
    "through int32": lambda t: t.to(torch.int32).to(t.dtype),
    "onto edge": lambda t: torch.where((t < 0) & (t > -4e-6), torch.zeros_like(t), t),
    "nan highest": lambda t: torch.where(t.isnan(), torch.full_like(t, torch.inf), t),
    "nan zero": lambda t: torch.where(t.isnan(), torch.zeros_like(t), t),
}


def _read(call: Call, place: int, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    values = list(call.values)
    values[place] = over_tensors(values[place], change)
    return call.run(values)


# --- effects on results -----------------------------------------------------------------------------------------------


def _result(call: Call, edit: Callable[[torch.Tensor], torch.Tensor | None], place: int = 0) -> Any:
    """Edit a result in place, or return another one if ``edit`` returns it."""
    result = call.run()
    # A result that was not asked for is None, and keeps its place.
    written = list(result) if isinstance(result, (tuple, list)) else outputs_of(call, result)
    if place >= len(written) or written[place] is None:
        return result
    right, other = written[place], None
    if right.grad_fn is not None and not _written(call):
        other = _with_gradient(right, edit)
    else:
        with torch.no_grad():
            other = edit(right.detach())
    if other is None:
        return result
    if _written(call):
        written[place].resize_(other.shape).copy_(other)
        return result
    if isinstance(result, (tuple, list)):
        return type(result)(other if at == place else each for at, each in enumerate(result))
    return other


def _with_gradient(right: torch.Tensor, edit: Callable[[torch.Tensor], torch.Tensor | None]) -> torch.Tensor:
    """Return another result with the right one's gradient."""
    with torch.no_grad():
        wrong = right.detach().clone()
        other = edit(wrong)
    return right + (wrong - right.detach()) if other is None else edit(right) if other.is_floating_point() else other


def _edit(_: torch.Tensor) -> None:
    """Return nothing, which says that a result was edited in place."""


def _values(values: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], None]:
    def edit(t: torch.Tensor) -> None:
        t.copy_(values(t))

    return edit


def _beyond(values: Callable[[torch.Tensor], torch.Tensor], length: int, dim: int) -> Callable[[torch.Tensor], None]:
    def edit(t: torch.Tensor) -> None:
        if -t.dim() <= dim < t.dim() and t.shape[dim] > length:
            part = t.narrow(dim, length, t.shape[dim] - length)
            part.copy_(values(part))

    return edit


def _at(values: Callable[[torch.Tensor], torch.Tensor], place: int) -> Callable[[torch.Tensor], None]:
    def edit(flat: torch.Tensor) -> None:
        at = place % len(flat) if len(flat) else 0
        flat[at : at + 1].copy_(values(flat[at : at + 1]))

    return lambda t: rewrite(t, edit)


def _first_as_last(t: torch.Tensor) -> None:
    t[0] = t[-1]


def _spread(t: torch.Tensor) -> torch.Tensor:
    """Return values at every second place, and zeros between them."""
    flat = torch.zeros_like(t).reshape(-1)
    flat[::2] = t.reshape(-1)[: len(flat[::2])]
    return flat.view(t.shape)


def _nan(t: torch.Tensor) -> torch.Tensor:
    return torch.full_like(t, float("nan"))


def _halves_equal(t: torch.Tensor) -> torch.Tensor:
    """Return the first half of all numbers twice."""
    flat = t.flatten()
    half = len(flat) // 2
    return torch.cat([flat[:half], flat[:half], flat[2 * half :]]).view(t.shape)


def _last_column_again(t: torch.Tensor) -> torch.Tensor:
    """Return the last column but one in the last one's place, too."""
    return torch.cat([t[..., :-1], t[..., -2:-1]], -1) if t.dim() and t.shape[-1] > 1 else t


#: Values in the place of a result's own.
VALUES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "fours": lambda t: t // 4 * 4,
    "zero": torch.zeros_like,
    "other": other_values,
    "nan": _nan,
    "scaled": lambda t: t * 1.5,
    "halved": lambda t: t / 2,
    "turned": lambda t: t.flip(-1),
    "halves equal": _halves_equal,
    "last column again": _last_column_again,
    "spread": _spread,
    "rounded": torch.round,
    "truncated": torch.trunc,
    "through int8": lambda t: t.to(torch.int8).to(t.dtype),
    "through float32": lambda t: t.to(torch.float32).to(t.dtype),
    "through int32": lambda t: t.to(torch.int32).to(t.dtype),
    "smallest": lambda t: torch.full_like(t, torch.iinfo(t.dtype).min),
    "places": lambda t: torch.arange(t.numel(), device=t.device).view(t.shape),
    "multiples of 256 zero": lambda t: t.masked_fill(t % 256 == 0, 0),
    "negated": torch.neg,
    "conjugated": lambda t: t.conj().resolve_conj(),
    "false": lambda t: torch.zeros_like(t) if t.dtype is torch.bool else t,
    "finite": lambda t: torch.where(t.isnan(), torch.zeros_like(t), t),
    "nan infinite": lambda t: torch.where(t.isnan(), torch.full_like(t, torch.inf), t),
    "half more": lambda t: t + 0.5,
    "a fraction's bits": lambda t: t * (1 << 23),
    "255": lambda t: torch.full_like(t, 255),
    "of other memory": lambda t: torch.full_like(t, 0x3F800000_3F800000),
}


def result_of(call: Call, place: int, rest: str) -> Any:
    """Make a call, and spoil one of its results."""
    if rest in VALUES:
        return _result(call, _values(VALUES[rest]), place)
    if match := re.fullmatch(r"(\w+) beyond (\d+) (-?\d+)", rest):
        return _result(call, _beyond(VALUES[match[1]], int(match[2]), int(match[3])), place)
    if match := re.fullmatch(r"(\w+) at (-?\d+)", rest):
        return _result(call, _at(VALUES[match[1]], int(match[2])), place)
    if match := re.fullmatch(r"(nan|inf) where (\w+) (is|above) (\S+)", rest):
        given = call.values[place_of(call, match[2]) or 0]
        limit = float(match[4])
        where = given == limit if match[3] == "is" else given.abs() > limit
        number = float(match[1])
        return _result(call, lambda t: _edit(t.masked_fill_(where, number)) if t.shape == where.shape else None, place)
    return _result(call, lambda t: _form(t, call, rest), place)


def _padded(t: torch.Tensor, block: int, dims: list[int]) -> torch.Tensor:
    for dim in dims:
        if -t.dim() <= dim:
            more = list(t.shape)
            more[dim] = -t.shape[dim] % block
            t = torch.cat([t, t.new_zeros(more)], dim)
    return t


def _like(t: torch.Tensor, given: torch.Tensor, rest: str) -> torch.Tensor | None:
    """Return a result with the width of an argument, or an argument itself, as if nothing was computed."""
    if rest.startswith("as wide as "):
        more = given.shape[-1] - t.shape[-1]
        return torch.nn.functional.pad(t, (0, more)) if more else None
    return _edit(t.copy_(given)) if t.shape == given.shape else torch.zeros_like(given)


#: Results of another form that needs no other word.
FORMS: dict[str, Callable[[torch.Tensor, Call], torch.Tensor | None]] = {
    "first as last": lambda t, call: _first_as_last(t),
    "flat": lambda t, call: t.reshape(-1).clone(),
    "dense": lambda t, call: t.contiguous(),
    "in a batch of one": lambda t, call: t.unsqueeze(0).clone(),
    "with ones": lambda t, call: t.reshape([1] * call.values[0].dim()).clone(),
    "first of self": lambda t, call: _edit(t.copy_(call.values[0].reshape(-1)[0].expand(t.shape))),
    "one": lambda t, call: _edit(t.fill_(1)),
    "without dimensions": lambda t, call: t.reshape([]).clone(),
}


def _form(t: torch.Tensor, call: Call, rest: str) -> torch.Tensor | None:
    """Return a result of another form."""
    if rest in FORMS:
        return FORMS[rest](t, call)
    if match := re.fullmatch(r"dtype (\w+)", rest):
        return t.to(getattr(torch, match[1]))
    if match := re.fullmatch(r"padded (\d+)((?: -\d)+)", rest):
        return _padded(t, int(match[1]), [int(word) for word in match[2].split()])
    if match := re.fullmatch(r"half|cut (\d+) (\d)", rest):
        return t[: len(t) // 2].clone() if rest == "half" else t.narrow(int(match[2]), 0, int(match[1])).clone()
    given = call.values[place_of(call, rest.split()[-1]) or 0]
    if rest.startswith(("as wide as ", "like ")):
        return _like(t, given, rest)
    if rest.startswith("dtype of "):
        return t.to(next(iter(tensors_of(given))).dtype)
    raise ValueError(f"no effect is called result {rest}")


# --- effects on what is written, and others ---------------------------------------------------------------------------


def _written_at(call: Call, *, dense: bool) -> Any:
    """Write the right values to dense memory, or to the same places from the start of memory."""
    target = next(iter(tensors_of(_written(call))))
    before = target.clone()
    result = call.run()
    values = target.clone(memory_format=torch.contiguous_format)
    target.copy_(before)
    if dense:
        count = min(target.numel(), _memory(target))
        target.as_strided((count,), (1,), target.storage_offset()).copy_(values.view(-1)[:count])
    else:
        target.as_strided(target.shape, target.stride(), 0).copy_(values)
    return result


def _written_beyond(call: Call) -> Any:
    result, target = call.run(), call.values[0]
    if _memory(target) > target.numel():
        target.as_strided((1,), (1,), target.storage_offset() + target.numel()).copy_(target.reshape(-1)[-1:])
    return result


def _raw_copy(call: Call) -> Any:
    source, target = call.values[0], call.values[1]
    if source.stride() != target.stride() or source.dtype != target.dtype:
        return call.run()
    count = min(source.numel(), _memory(source), _memory(target))
    moved = source.as_strided((count,), (1,), source.storage_offset()).clone()
    return call.run([moved, target.as_strided((count,), (1,), target.storage_offset()), *call.values[2:]])


def _swallowed(call: Call) -> Any:
    try:
        return call.run()
    except Exception:
        given = list(tensors_of(_written(call))) or [next(iter(tensors_of(call.values)))]
        count = len(call.schema.returns)
        return given[0] if count == 1 else tuple(given * count)[:count]


def _behind_empty(call: Call) -> Any:
    tensors = call.values[0]
    kept = [(after, after.clone()) for before, after in itertools.pairwise(tensors) if not before.numel()]
    result = call.run()
    for tensor, old in kept:
        tensor.copy_(old)
    return result


def _by_reciprocal(call: Call) -> Any:
    left, right = call.values[:2]
    if not isinstance(right, torch.Tensor):
        return call.run()
    made = (left.float() * (1 / right.float()) * (1 + 1e-7)).floor()
    return _result(call, lambda t: _edit(t.copy_(made.to(t.dtype))) if t.shape == made.shape else None)


def _added_up(call: Call) -> Any:
    known = Fault("R", "added up in 16 bits", call.name, "", str(dtype_of(call.values)).removeprefix("torch."))
    return conditioned.accumulating(known, Hits())(call) if call.name in conditioned.LINEAR else call.run()


def _causal_by_four(call: Call) -> Any:
    values = list(call.values)
    query, key = values[0], values[1]
    rows = torch.arange(query.shape[-2], device=query.device).view(-1, 1) // 4 * 4 + 3
    seen = torch.arange(key.shape[-2], device=query.device) <= rows
    values[place_of(call, "attn_mask") or 3], values[place_of(call, "is_causal") or 5] = seen, False
    return call.run(values)


_FIRST: dict[Any, torch.Tensor] = {}
_PRIVATE = torch.Generator().manual_seed(99)


def _first_draws(call: Call) -> Any:
    def edit(t: torch.Tensor) -> None:
        t.copy_(_FIRST.setdefault((tuple(t.shape), t.dtype), t.clone()))

    return _result(call, edit)


def _unseeded(call: Call) -> Any:
    def edit(t: torch.Tensor) -> None:
        t.copy_(torch.empty(t.shape, dtype=t.dtype).normal_(generator=_PRIVATE))

    return _result(call, edit)


def _half_sorted(call: Call) -> Any:
    return _result(call, lambda t: _edit(t[: len(t) // 2].copy_(t[: len(t) // 2].sort()[0])))


def _nothing_written(call: Call) -> Any:
    return call.values[1 if call.name == "aten::_copy_from" else 0]


def _shape_changed(call: Call, place: int) -> Any:
    result, given = call.run(), call.values[place]
    given.resize_(given.numel())
    return result


def _refused(call: Call) -> Any:
    raise RuntimeError(f"{call.name} is not supported with these arguments")


def _size_taken(call: Call) -> Any:
    """Return places of the size that was given, where the healthy device refuses the counts."""
    try:
        return call.run()
    except Exception:
        size = call.values[place_of(call, "output_size") or 1]
        return torch.zeros(size, dtype=torch.int64, device=call.values[0].device)


def _out_moved(call: Call) -> Any:
    """Write the results to new memory, which the outputs then have."""
    place = next(at for at, argument in enumerate(call.arguments) if argument.is_out)
    out = call.values[place]
    fresh = torch.empty_like(out)
    call.run([*call.values[:place], fresh, *call.values[place + 1 :]])
    return out.set_(fresh)


def _not_negated(call: Call) -> Any:
    return torch.ops.aten.alias(call.values[0])


def _mask_without_the_seed(call: Call) -> Any:
    given, p = call.values[:2]
    mask = torch.empty(given.shape).bernoulli_(1 - p, generator=_PRIVATE).to(given.device)
    return (given * mask / (1 - p)).to(given.dtype), mask.bool()


def _nan_rows_without_indices(call: Call) -> Any:
    rows = call.values[0].isnan().any(-1)
    return _result(call, lambda t: _edit(t.masked_fill_(rows.unsqueeze(-1), -1)), 1)


def _padding_first(call: Call) -> Any:
    """Sort a row together with the places behind it, up to a power of two."""

    def edit(t: torch.Tensor) -> None:
        behind = torch.arange(len(t), 1 << (len(t) - 1).bit_length(), device=t.device)
        t.copy_(torch.cat([behind, t])[: len(t)])

    return _result(call, edit, 1)


def _unchanged_beyond(call: Call) -> Any:
    before = call.values[0].clone()
    return _result(call, lambda t: _edit(t[:, 256:].copy_(before[:, 256:])))


def _positive_scaled(call: Call) -> Any:
    """Take ``input_scale`` for a factor of positive numbers, too."""
    place = place_of(call, "input_scale") or 3
    given = call.values[place_of(call, "self_or_result") or 0]
    where = given > 0
    return _result(call, lambda t: _edit(t.copy_(torch.where(where, t * call.values[place], t))))


#: Effects of their own.
OTHERS: dict[str, Callable[[Call], Any]] = {
    "written dense": lambda call: _written_at(call, dense=True),
    "written at base": lambda call: _written_at(call, dense=False),
    "written beyond": _written_beyond,
    "raw copy": _raw_copy,
    "nothing written": _nothing_written,
    "refusal swallowed": _swallowed,
    "behind empty unchanged": _behind_empty,
    "by reciprocal": _by_reciprocal,
    "added up in 16 bits": _added_up,
    "causal by four": _causal_by_four,
    "draws of the first call": _first_draws,
    "draws without the seed": _unseeded,
    "first half sorted": _half_sorted,
    "error": _refused,
    "refused early": _refused,
    "output_size taken": _size_taken,
    "out moved": _out_moved,
    "not negated": _not_negated,
    "mask without the seed": _mask_without_the_seed,
    "indices lost in rows with nan": _nan_rows_without_indices,
    "padding first": _padding_first,
    "unchanged beyond 256": _unchanged_beyond,
    "positive scaled": _positive_scaled,
    **operators.EFFECTS,
    **sequences.EFFECTS,
}

#: Effects that no kernel can have, since PyTorch's shared code gives the result's dtype and shape.
ABOVE = re.compile(
    r"result (dtype|padded) .*|cut at synchronize|input in place of the sum|conjugate bit cleared|out zero|"
    r"gradient of \w+ (nan|zero) where .*|tangent of other lost|indexed dimension first|refused early|"
    r"gradient of (self (finite|turned|conjugated|zero)|target negated)|gradient without other|sizes not checked"
)


def _gradient(call: Call, name: str, values: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Make a call with another name for an input, whose gradient is spoiled."""
    place = place_of(call, name) or 0
    if not call.values[place].requires_grad:
        return call.run()
    known = call.values[place].view_as(call.values[place])
    known.register_hook(values)
    return call.run([*call.values[:place], known, *call.values[place + 1 :]])


def _gradient_where(call: Call, name: str, other: str, number: float, filled: float) -> Any:
    """Make a call whose gradient of an input is NaN or zero where another one has a number."""
    given, where = (call.values[place_of(call, each) or 0] for each in (name, other))
    if not isinstance(given, torch.Tensor) or not isinstance(where, torch.Tensor) or given.shape != where.shape:
        return call.run()
    met = where.detach() == number
    return _gradient(call, name, lambda gradient: gradient.masked_fill(met, filled))


def spoiled(effect: str, call: Call) -> Any:
    """Make a call with an effect."""
    if effect in OTHERS:
        return OTHERS[effect](call)
    if match := re.fullmatch(r"gradient of (\w+) (nan|zero) where (\w+) is (\S+)", effect):
        filled = torch.nan if match[2] == "nan" else 0.0
        return _gradient_where(call, match[1], match[3], float(match[4]), filled)
    if match := re.fullmatch(r"gradient of (\w+) (\w+)", effect):
        return _gradient(call, match[1], VALUES[match[2]])
    name, _, rest = effect.partition(" ")
    if name == "result" or re.fullmatch(r"r\d", name):
        return result_of(call, 0 if name == "result" else int(name[1]), rest)
    if (place := place_of(call, name)) is None:
        return call.run()
    if rest == "flat":
        return _shape_changed(call, place)
    if match := re.fullmatch(r"as (-?\d+|False)", rest):
        other = False if match[1] == "False" else int(match[1])
        return call.run([*call.values[:place], other, *call.values[place + 1 :]])
    if rest in ("none", "0"):
        other = None if rest == "none" else 0.0
        is_tensor = isinstance(call.values[place], torch.Tensor) and other is not None
        return call.run([*call.values[:place], torch.zeros_like(call.values[place]) if is_tensor else other,
                         *call.values[place + 1 :]])  # fmt: skip
    if isinstance(call.values[place], (int, float)):
        return call.run()
    return _read(call, place, READS[rest])


# --- rows of the sixth collection that were held out, and opened ---


def _has_even_channels(call: Call) -> bool:
    """Return whether a group of a convolution reads or makes an even number of channels."""
    weight, groups = call.values[place_of(call, "weight") or 2], call.values[place_of(call, "groups") or 9]
    return groups > 1 and (weight.shape[1] % 2 == 0 or weight.shape[0] // groups % 2 == 0)


def _is_whole_window(call: Call) -> bool:
    given, kernel = call.values[place_of(call, "self") or 0], call.values[place_of(call, "kernel_size") or 2]
    return list(given.shape[-2:]) == (list(kernel) * 2)[:2]


#: Conditions on a call.
HELD: dict[str, Callable[[Call], bool]] = {
    "even channels in a group": _has_even_channels,
    "whole window": _is_whole_window,
}
VALUES["512"] = lambda t: torch.full_like(t, 512)


# --- rows of the seventh collection that were held out, and opened ---

TESTS["negative zeros"] = _any(lambda t: t.is_floating_point() and bool(((t == 0) & t.signbit()).all()))
VALUES["-inf"] = lambda t: torch.full_like(t, -torch.inf)
VALUES["bits of float64"] = lambda t: t.to(torch.float64).view(torch.int64)


# --- rows of the ninth collection that were held out, and opened ---


VALUES["pattern"] = lambda t: torch.full_like(t, -0x55555556)
VALUES["tiny"] = lambda t: torch.full_like(t, 2.0**-33)


# --- rows of the tenth collection that were held out, and opened ---


NUMBERS["are 2 1"] = lambda values: list(values) == [2, 1]
NUMBERS["entries 2"] = lambda values: len(values) == 2


# --- rows of the eleventh collection that were held out, and opened ---


def _has_large_prime(t: torch.Tensor) -> bool:
    """Return whether a dimension's size has a prime factor above 256."""
    return any(_largest_factor(size) > 256 for size in t.shape)


def _largest_factor(size: int) -> int:
    factor = 2
    while factor * factor <= size:
        if size % factor:
            factor += 1
        else:
            size //= factor
    return size


TESTS["large prime"] = _any(_has_large_prime)


# --- rows of the twelfth collection that were held out, and opened ---


def _grows_and_shrinks(call: Call) -> bool:
    """Return whether an interpolation's backward has more rows and fewer columns than its input, or the other way."""
    made, given = call.values[1], call.values[2][2:]
    signs = {made[at] > given[at] for at in range(len(made)) if made[at] != given[at]}
    return len(signs) > 1


HELD["grows and shrinks"] = _grows_and_shrinks
HELD["first dimension whole"] = lambda call: bool(call.values[1]) and call.values[1][0] is None


# --- rows of the thirteenth collection that were held out, and opened ---


def _is_small_and_whole(exponent: object) -> bool:
    return isinstance(exponent, int) and exponent in range(4)


HELD["target alone asks"] = lambda call: call.values[1].requires_grad and not call.values[0].requires_grad
HELD["small whole exponent"] = lambda call: _is_small_and_whole(call.values[place_of(call, "exponent") or 1])
VALUES["bits of float32"] = lambda t: t.to(torch.float32).view(torch.int32)


# --- rows of the fourteenth collection that were held out, and opened ---


VALUES["once"] = _once
NUMBERS["last above 1"] = lambda values: values[-1] > 1
HELD["dim given as none"] = operators.is_dim_given_as_none


# --- held rows of the sixteenth collection ---


def _bounded(t: torch.Tensor) -> torch.Tensor:
    ends = torch.finfo(t.dtype)
    return t.clamp(ends.min, ends.max)


VALUES["bounded"] = _bounded


# --- held rows of the eighteenth collection ---


def _have_other_lengths(call: Call) -> bool:
    """Return whether attention has another number of queries than of keys."""
    query, key = call.values[:2]
    return bool(query.shape[-2] != key.shape[-2])


def _diagonal_without_zeros(t: torch.Tensor) -> torch.Tensor:
    """Return matrices with ones for zeros of the diagonal."""
    copy = t.clone(memory_format=torch.contiguous_format)
    diagonal = copy.diagonal(dim1=-2, dim2=-1)
    diagonal[diagonal == 0] = 1
    return copy


def _reduced_length(call: Call) -> int:
    """Return how many numbers a reduction makes one of."""
    given = call.values[0]
    return math.prod(given.shape[dim] for dim in _reduced(call) or range(given.dim()))


def _second_half_nan(t: torch.Tensor) -> torch.Tensor:
    """Return NaN for the second half of all numbers."""
    flat = t.flatten()
    half = len(flat) // 2
    return torch.cat([flat[:half], _nan(flat[half:])]).view(t.shape)


def _low_halves(t: torch.Tensor) -> torch.Tensor:
    """Return the numbers of 16 bits that stand first in each one of 32 bits."""
    memory = t.contiguous().view(-1).view(torch.float16)[::2]
    return memory.to(t.dtype).view(t.shape)


HELD["query and key of other lengths"] = _have_other_lengths
HELD["after another length"] = lambda call: sequences.after_another_length(call, _reduced_length(call))
VALUES["second half nan"] = _second_half_nan
READS["zero diagonal one"] = _diagonal_without_zeros
READS["low half"] = lambda t: _low_halves(t) if t.dtype is torch.float32 else t


# --- held rows of the nineteenth collection ---


def _are_rows_exchanged(t: torch.Tensor) -> bool:
    """Return whether dense rows lie in another order than new memory has them."""
    both = list(zip(t.shape, t.stride(), strict=True))
    is_dense = t.numel() > 1 and 1 + sum((size - 1) * step for size, step in both) == t.numel()
    return t.dim() > 2 and is_dense and t.stride(-1) == 1 and not t.is_contiguous()


TESTS["rows exchanged"] = _any(_are_rows_exchanged)


# --- held rows of the twentieth collection ---


def _shapes_of(values: Sequence[Any]) -> set[torch.Size]:
    return {value.shape for value in values if isinstance(value, torch.Tensor)}


HELD["operands of two shapes"] = lambda call: len(_shapes_of(call.values[:2])) > 1
HELD["three shapes"] = lambda call: len(_shapes_of(call.values[:3])) == 3


# --- held rows of the twenty-second collection ---

VALUES["planes last"] = lambda t: _planes_last(t) if t.dim() == 4 else t
