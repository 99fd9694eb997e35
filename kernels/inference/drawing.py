"""Arguments of samples and refusals: random tensors, and changes that make an argument invalid."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from conformance.kernels.specification import Arguments, KernelSample, Refusal

Draw = Callable[..., Tensor]


def drawing(generator: torch.Generator, dtype: torch.dtype) -> Draw:
    """Return a function ``draw(*shape, scale=1, offset=0)`` of normally distributed numbers in ``dtype``."""

    def draw(*shape: int, scale: float = 1.0, offset: float = 0.0) -> Tensor:
        numbers = torch.randn(shape, generator=generator, dtype=torch.float64)
        return (numbers * scale + offset).to(dtype)

    return draw


#: Samples of shapes and flags. Their errors show in every dtype, and best in float32.
_IN_FLOAT32 = ("long", "empty", "single", "one", "rows", "transposed", "three-ranks", "unbiased", "positions")


def samples(make: Callable[..., Arguments], named: dict[str, dict[str, Any]]) -> tuple[KernelSample, ...]:
    """Return a sample ``make(draw, dtype, **settings)`` for each of ``named``; some run in float32 only."""
    return tuple(
        KernelSample(name, functools.partial(_made, make, settings), ("float32",) if name in _IN_FLOAT32 else ())
        for name, settings in named.items()
    )


def _made(
    make: Callable[..., Arguments], settings: dict[str, Any], generator: torch.Generator, dtype: torch.dtype
) -> Arguments:
    return make(drawing(generator, dtype), dtype, **settings)


def spoiled(name: str, argument: str, change: Callable[[Any], Any]) -> Refusal:
    """Return a refusal: a call whose ``argument`` is replaced by the result of ``change``."""
    return Refusal(name, argument, functools.partial(_changed, argument, change))


def _changed(argument: str, change: Callable[[Any], Any], given: Arguments) -> Arguments:
    return {**given, argument: change(given[argument])}


def other_dtype(tensor: Tensor) -> Tensor:
    """Return ``tensor`` in another floating-point dtype."""
    return tensor.to(torch.bfloat16 if tensor.dtype is not torch.bfloat16 else torch.float16)


def longer(tensor: Tensor) -> Tensor:
    """Return ``tensor`` with one more element in its last dimension."""
    return torch.cat([tensor, tensor[..., :1]], dim=-1)


def strided(tensor: Tensor) -> Tensor:
    """Return a tensor that is not contiguous and has the same values."""
    return torch.stack([tensor, tensor], dim=-1)[..., 0]


def elsewhere(tensor: Tensor) -> Tensor:
    """Return ``tensor`` on another device: the meta device, which every machine has."""
    return tensor.to("meta")


def put(value: Any) -> Callable[[Any], Any]:
    """Return a change that replaces any argument by ``value``."""

    def change(_: Any) -> Any:
        return value

    return change
