"""Calls without numbers: a kernel's name, and the sizes, strides and dtypes of its arguments.

Such a call is made again with new numbers. Its floating-point memory is one random block, repeated: a block of a prime
length, which no tile divides, so that a kernel that reads from another place reads other numbers. Large arguments then
cost no more than a copy.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch

from conformance.numerics.trees import mapped

from .kernels import base_name, bound

#: Length of the block of random numbers, a prime.
_BLOCK: Final = 1_000_003
#: Arguments that hold positions, and the argument and the dimension that they count in ("dim" is an argument).
_POSITIONS: Final[dict[str, dict[str, tuple[str, Any]]]] = {
    "embedding": {"indices": ("weight", 0)},
    "embedding_dense_backward": {"indices": ("num_weights", None)},
    "index_select": {"index": ("self", "dim")},
    "gather": {"index": ("self", "dim")},
    "scatter": {"index": ("self", "dim")},
    "scatter_add": {"index": ("self", "dim")},
    "index_add": {"index": ("self", "dim")},
    "nll_loss_forward": {"target": ("self", 1)},
    "nll_loss_backward": {"target": ("self", 1)},
}
#: Functions of positive numbers.
_POSITIVE: Final = frozenset({"rsqrt", "sqrt", "log", "log2", "log1p", "pow"})


@dataclass(frozen=True)
class Spec:
    """One call without numbers. Tensors among its arguments are dicts with ``size``, ``stride`` and ``dtype``."""

    function: str
    args: Any
    kwargs: Any
    count: int = 1

    @property
    def elements(self) -> int:
        """Return the elements of all tensors that it gets."""
        return sum(math.prod(leaf["size"]) for leaf in self.tensors())

    def tensors(self) -> Iterator[dict[str, Any]]:
        """Yield the descriptions of the tensors that it gets."""
        yield from _specs((self.args, self.kwargs))

    def __str__(self) -> str:
        shown = ", ".join(f"{leaf['dtype']}{leaf['size']}" for leaf in self.tensors())
        return f"{self.function}({shown})"


def _specs(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict) and "size" in value:
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _specs(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _specs(item)


@dataclass(frozen=True)
class Made:
    """Arguments of a call with numbers."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def function_of(spec: Spec) -> Any:
    """Return the overload that a call names; None if this torch has none of that name."""
    found: Any = torch.ops
    for part in spec.function.split("."):
        found = getattr(found, part, None)
    return found


def made(spec: Spec, function: Any, seed: int, place: Callable[[Any], Any] = lambda leaf: leaf) -> Made:
    """Return new arguments: small numbers of several signs, and positions that exist.

    They are on the host, or where ``place`` moves each of them before the next one is made.
    """
    generator = torch.Generator().manual_seed(seed)
    places = _POSITIONS.get(base_name(function).removesuffix("_"), {})
    limits: dict[str, Any] = {name: _limit(spec, function, *where) for name, where in places.items()}
    if base_name(function).startswith(("index", "_index_put")) and isinstance(spec.args[1], list):
        limits["indices"] = spec.args[0]["size"]  # a position in each dimension
    is_positive = base_name(function).removesuffix("_") in _POSITIVE

    def argument(name: str, value: Any, *, is_positive: bool = False) -> Any:
        found = _value(value, generator, limits.get(name, 2))
        if is_positive and isinstance(found, torch.Tensor) and found.is_floating_point():
            found.abs_()
        if base_name(function) == "_grouped_mm" and name == "offs" and isinstance(found, torch.Tensor):
            found = _ends(spec, found, generator)
        return mapped(found, place)

    names = [described.name for described in function._schema.arguments]
    args = [argument(name, value, is_positive=is_positive) for name, value in zip(names, spec.args, strict=False)]
    return Made(tuple(args), {name: argument(name, value) for name, value in spec.kwargs.items()})


def _ends(spec: Spec, like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return the ends of the groups of rows, or of terms of a sum, of a grouped product; the last one is all."""
    first, second = (operand["size"] for operand in spec.args[:2])
    ends = torch.rand(like.shape, generator=generator).cumsum(0)
    rows: int = first[0 if len(second) == 3 else 1]
    return (ends / ends[-1] * rows).round().to(like.dtype)


def _limit(spec: Spec, function: Any, argument: str, dim: Any) -> int:
    names = bound(function, spec.args, spec.kwargs)
    value = names[argument]
    if isinstance(value, int):
        return value
    return int(value["size"][names["dim"] if dim == "dim" else dim])


def _value(value: Any, generator: torch.Generator, limit: Any) -> Any:
    if isinstance(value, list):
        limits = limit if isinstance(limit, list) else [limit] * len(value)
        return [_value(item, generator, most) for item, most in zip(value, limits, strict=False)]
    if not isinstance(value, dict):
        return value
    if "torch" in value:
        return getattr(torch, value["torch"])
    if "device" in value:
        return torch.device("cpu")
    dtype, size, stride = getattr(torch, value["dtype"]), value["size"], value["stride"]
    return memory(extent_of(size, stride), dtype, generator, limit).as_strided(size, stride)


def extent_of(size: Any, stride: Any) -> int:
    """Return the elements of the memory that a tensor reaches over."""
    return 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if all(size) else 0


def memory(extent: int, dtype: torch.dtype, generator: torch.Generator, limit: int = 2) -> torch.Tensor:
    """Return a memory of new numbers; integers are below ``limit``."""
    drawn = min(extent, _BLOCK)
    if dtype.is_floating_point or dtype.is_complex:
        wide = torch.complex64 if dtype.is_complex else torch.float32
        block = _block(wide, generator) if drawn < extent else torch.randn(drawn, generator=generator, dtype=wide)
        block = block.to(dtype)
    else:
        block = torch.randint(0, max(1, limit), (drawn,), generator=generator).to(dtype)
    return block if drawn == extent else block.repeat(-(-extent // max(1, drawn)))[:extent]


def _block(dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Return a block of random numbers that nobody may change. It is kept, as most calls draw the same ones again."""
    block, after = _kept(dtype, generator.get_state().numpy().tobytes())
    generator.set_state(after)
    return block


@functools.lru_cache(maxsize=8)  # of 4 MiB each
def _kept(dtype: torch.dtype, state: bytes) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a block that a generator with this state draws, and its state behind the block."""
    generator = torch.Generator()
    generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    return torch.randn(_BLOCK, generator=generator, dtype=dtype), generator.get_state()


def moved(leaf: Any, device: torch.device) -> Any:
    """Return a copy of an argument on a device; a tensor keeps its strides."""
    if isinstance(leaf, torch.device):
        return device
    if not isinstance(leaf, torch.Tensor):
        return leaf
    whole = leaf.as_strided((leaf.untyped_storage().nbytes() // leaf.element_size(),), (1,), 0)
    return whole.to(device, copy=True).as_strided(leaf.shape, leaf.stride(), 0)
