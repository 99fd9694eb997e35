"""Other values for the arguments of a direct call: larger, with other layouts, special, or invalid."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch

from conformance.coverage.databases import tensors_of

#: Most elements of an enlarged tensor.
_MOST = 1 << 22


def is_tensors(value: Any) -> bool:
    """Return whether a value is a tensor or a list of tensors."""
    return isinstance(value, torch.Tensor) or (
        isinstance(value, (list, tuple)) and any(isinstance(item, torch.Tensor) for item in value)
    )


def over_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return the value with ``change`` applied to each of its tensors."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (list, tuple)) and is_tensors(value):
        return [over_tensors(item, change) for item in value]
    return value


def with_change(
    values: dict[str, Any], name: str, change: Callable[[torch.Tensor], torch.Tensor]
) -> Iterator[dict[str, Any]]:
    """Yield the values with ``change`` applied to one argument, to each other one in turn, and to all of them.

    A public function may have another name for the argument of its kernel: ``copy_`` writes ``self``, and
    ``_copy_from`` writes ``dst``.
    """
    names = [key for key, value in values.items() if is_tensors(value)]
    names.sort(key=lambda key: key != name)
    for chosen in dict.fromkeys([*((key,) for key in names), tuple(names)]):
        try:
            yield {**values, **{key: over_tensors(values[key], change) for key in chosen}}
        except (RuntimeError, IndexError):
            continue


def strided(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same values with a gap before each element, and so with an offset."""
    if not tensor.dim():
        return tensor
    wide = torch.empty(*tensor.shape[:-1], tensor.shape[-1] * 2, dtype=tensor.dtype)
    wide[..., 1::2].copy_(tensor)
    wide[..., ::2].copy_(tensor.flip(-1))
    return wide[..., 1::2]


def offset(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same values some elements after the start of their memory."""
    memory = torch.ones(tensor.numel() + 3, dtype=tensor.dtype)
    memory[3:].copy_(tensor.reshape(-1))
    return memory[3:].view(tensor.shape)


def expanded(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same shape whose first dimension of several elements repeats its first one."""
    dim = next((dim for dim, size in enumerate(tensor.shape) if size > 1), None)
    return tensor if dim is None else tensor.narrow(dim, 0, 1).expand(tensor.shape)


def without_dims(tensor: torch.Tensor) -> torch.Tensor:
    """Return the first element, without dimensions."""
    return tensor.reshape(-1)[:1].reshape(()) if tensor.numel() else tensor


def filled(values: dict[str, Any], optional: Collection[str]) -> Iterator[dict[str, Any]]:
    """Yield the values with tensors in place of optional ones: of the shape of the first, and of one of its sizes."""
    absent = [name for name in optional if values.get(name) is None and name in values]
    first = next((tensor for value in values.values() for tensor in tensors_of(value)), None)
    if first is None or not absent:
        return
    for shape in dict.fromkeys([tuple(first.shape), *((size,) for size in first.shape)]):
        dtype = first.dtype if first.is_floating_point() else torch.float32
        yield {**values, **{name: torch.linspace(0.5, 1.75, math.prod(shape)).to(dtype).view(shape) for name in absent}}


def cut(values: dict[str, Any], size: int) -> dict[str, Any]:
    """Return the values with so many rows of each tensor along each dimension: those of one rank have one shape."""
    return {name: over_tensors(value, lambda t: t[(slice(size),) * t.dim()]) for name, value in values.items()}


def alike(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values with equal tensors wherever two have one shape and one dtype."""
    first: dict[Any, torch.Tensor] = {}
    return {
        name: over_tensors(value, lambda t: first.setdefault((t.shape, t.dtype), t)) for name, value in values.items()
    }


def with_specials(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values with NaN, infinities and a negative zero in front of each tensor of floating point."""
    special = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0])

    def change(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point() or tensor.itemsize < special.element_size() // 2:
            return tensor
        flat = tensor.clone(memory_format=torch.contiguous_format).view(-1)
        flat[: len(special)] = special[: flat.numel()].to(tensor.dtype)
        return flat.view(tensor.shape)

    return {name: over_tensors(value, change) for name, value in values.items()}


def channels_last(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same values with the channels last in memory."""
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor


def larger(values: dict[str, Any], elements: int) -> Iterator[dict[str, Any]]:
    """Yield the values with tensors of at least so many elements, enlarged along one size after another."""
    tensors = [value for value in values.values() if isinstance(value, torch.Tensor)]
    lists = [item for value in values.values() if isinstance(value, (list, tuple)) for item in value]
    tensors += [item for item in lists if isinstance(item, torch.Tensor)]
    sizes = [size for tensor in tensors for size in tensor.shape if size > 0]
    if not sizes:
        yield from spread(values, elements)
    yield from _counted(values, elements)
    most = max((tensor.numel() for tensor in tensors), default=0)
    for size in dict.fromkeys(sizes):
        for wanted in (elements, elements * 4, elements * 16):
            factor = -(-wanted // max(1, most)) + 1
            try:
                yield {name: _with_size(value, size, factor) for name, value in values.items()}
                root = int(factor**0.5) + 2
                yield {name: _with_size(value, size, root) for name, value in values.items()}
            except (_TooLarge, RuntimeError):
                continue
    for wanted in (elements, elements * 4, elements * 16):
        factor = -(-wanted // max(1, most)) + 1
        for place in (0, -1):
            try:
                yield {
                    name: over_tensors(value, lambda t, place=place, factor=factor: _tiled(t, place, factor))
                    for name, value in values.items()
                }
            except (_TooLarge, RuntimeError):
                continue


#: How far values spread from one: within the domain of most functions, and over the range of a histogram.
_STEPS = (0.5, 21.0)


class _TooLarge(Exception):
    """Raised for a tensor that would be too large."""


def spread(values: dict[str, Any], elements: int) -> Iterator[dict[str, Any]]:
    """Yield the values with vectors in the place of tensors without dimensions."""
    for step in _STEPS if any(True for value in values.values() for _ in tensors_of(value)) else ():
        yield {name: over_tensors(value, lambda t, by=step: _spread(t, elements, by)) for name, value in values.items()}


def _spread(tensor: torch.Tensor, elements: int, by: float) -> torch.Tensor:
    """Return a vector of values between that of a 0-dim tensor and one that is larger by some amount."""
    if tensor.dim():
        return tensor
    vector = tensor.repeat(elements)
    steps = torch.linspace(0, by, elements, dtype=torch.float64).to(tensor.dtype)
    return vector + steps if tensor.is_floating_point() else vector


def few_values(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values with whole numbers from −1 to 1 in their tensors of floating point: some of them are equal."""
    return {
        name: over_tensors(value, lambda t: t.round().clamp(-1, 1) if t.is_floating_point() else t)
        for name, value in values.items()
    }


def _tiled(tensor: torch.Tensor, place: int, factor: int) -> torch.Tensor:
    if tensor.dim() == 0 or tensor.numel() == 0:
        return tensor
    if tensor.numel() * factor > _MOST:
        raise _TooLarge
    repeats = [1] * tensor.dim()
    repeats[place] = factor
    return tensor.repeat(repeats)


def _with_size(value: Any, size: int, factor: int) -> Any:
    """Return the value with each size of this number multiplied, in tensors and in lists of sizes."""
    if isinstance(value, torch.Tensor):
        repeats = [factor if dim == size else 1 for dim in value.shape]
        total = value.numel()
        for repeat in repeats:
            total *= repeat
        if total > _MOST:
            raise _TooLarge
        return value.repeat(repeats) if value.dim() and factor > 1 else value
    if isinstance(value, (list, tuple)):
        if any(isinstance(item, torch.Tensor) for item in value):
            return [_with_size(item, size, factor) for item in value]
        if all(type(item) is int for item in value) and size > 1:
            return [item * factor if item == size else item for item in value]
    return value


def alternatives(value: Any, kind: str) -> Iterator[Any]:
    """Yield other values for an argument that is no tensor."""
    if "bool" in kind and "List" not in kind:
        yield not value
    elif kind in ("int", "Optional[int]", "SymInt", "Optional[SymInt]"):
        yield from (other for other in (1, 0, 2, -1, 3) if other != value)
    elif kind in ("float", "Optional[float]", "number", "Optional[number]"):
        yield from (other for other in (2, 0.5, 1.5, -1.5, 0.1, 3) if other != value)
    elif "List[int]" in kind:
        size = len(value) if value else 1
        for number in (1, 2, 0, 3):
            yield [number] * size
        yield [0, 1]
    elif "List[bool]" in kind and value:
        yield [not item for item in value]
    elif "Tensor" in kind and value is not None:
        yield None
    elif kind == "Optional[str]" or kind == "str":
        yield from ("floor", "trunc", "tanh", "none")


#: Numbers that say how long a result is.
_COUNTS = ("steps", "n", "window_length", "minlength", "bins", "end", "k", "size", "shape", "output_size")


def _counted(values: dict[str, Any], length: int) -> Iterator[dict[str, Any]]:
    """Yield the values with this length in the place of each number that says how long a result is."""
    for name in _COUNTS:
        if type(values.get(name)) is int and length < _MOST:
            yield {**values, name: length}
        elif isinstance(values.get(name), (list, tuple)):
            for at in range(len(values[name])):
                yield {**values, name: [length if place == at else size for place, size in enumerate(values[name])]}


def long_axes(values: dict[str, Any], length: int) -> Iterator[dict[str, Any]]:
    """Yield the values with one size after another beyond a length, in all tensors and lists of sizes that have it."""
    yield from _counted(values, length)
    given = [tensor for value in values.values() for tensor in tensors_of(value)]
    if not any(tensor.dim() for tensor in given):
        yield from spread(values, length)
    for size in dict.fromkeys(size for tensor in given for size in tensor.shape if size > 0):
        with contextlib.suppress(_TooLarge, RuntimeError):
            yield {name: _with_size(value, size, length // size + 1) for name, value in values.items()}
    for dim in range(given[0].dim() if given else 0):
        with contextlib.suppress(_TooLarge, RuntimeError):
            yield {name: over_tensors(value, _along(given[0], dim, length)) for name, value in values.items()}
    for place in (0, 1, -1):
        for name, value in values.items():
            if is_tensors(value):
                with contextlib.suppress(_TooLarge, RuntimeError, IndexError):
                    yield {**values, name: over_tensors(value, lambda t, at=place: _lengthened(t, at, length))}
        yield from _all_lengthened(values, place, length)
    # Of a batch in one dimension there is no second one.
    more = {name: over_tensors(value, lambda t: t.unsqueeze(0)) for name, value in values.items()}
    for place in (0, 1):
        yield from _all_lengthened(more, place, length)


def _all_lengthened(values: dict[str, Any], place: int, length: int) -> Iterator[dict[str, Any]]:
    with contextlib.suppress(_TooLarge, RuntimeError, IndexError):
        yield {name: over_tensors(value, lambda t: _lengthened(t, place, length)) for name, value in values.items()}


def _along(first: torch.Tensor, dim: int, length: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return what makes one dimension of a tensor long: of the first one this, of others the first of the same size."""
    size = first.shape[dim]

    def change(tensor: torch.Tensor) -> torch.Tensor:
        place = dim if tensor.dim() == first.dim() else next((d for d, n in enumerate(tensor.shape) if n == size), None)
        fits = place is not None and tensor.shape[place] == size and size > 0
        return _tiled(tensor, place, length // size + 1) if fits else tensor

    return change


def _lengthened(tensor: torch.Tensor, place: int, length: int) -> torch.Tensor:
    if tensor.dim() == 0 or tensor.numel() == 0:
        return tensor
    return _tiled(tensor, place, length // tensor.shape[place] + 1)
