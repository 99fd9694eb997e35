"""Arguments of samples: numbers of either sign from the generator that a sample is given."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from conformance.kernels.specification import Arguments, KernelSample, Refusal

Draw = Callable[..., Tensor]


def drawing(generator: torch.Generator, dtype: torch.dtype) -> Draw:
    """``draw(*shape, scale=1, offset=0)``: normal numbers in that dtype."""

    def draw(*shape: int, scale: float = 1.0, offset: float = 0.0) -> Tensor:
        numbers = torch.randn(shape, generator=generator, dtype=torch.float64)
        return (numbers * scale + offset).to(dtype)

    return draw


#: What goes wrong with these goes wrong in every dtype, and float32 shows it best.
_IN_FLOAT32 = ("long", "empty", "single", "one", "rows", "transposed", "three-ranks", "unbiased", "positions")


def samples(make: Callable[..., Arguments], named: dict[str, dict[str, Any]]) -> tuple[KernelSample, ...]:
    """``make(draw, dtype, **settings)`` for each of the settings. Shapes and flags alone are tried in float32 alone."""
    return tuple(
        KernelSample(name, functools.partial(_made, make, settings), ("float32",) if name in _IN_FLOAT32 else ())
        for name, settings in named.items()
    )


def _made(
    make: Callable[..., Arguments], settings: dict[str, Any], generator: torch.Generator, dtype: torch.dtype
) -> Arguments:
    return make(drawing(generator, dtype), dtype, **settings)


def spoiled(name: str, argument: str, change: Callable[[Any], Any]) -> Refusal:
    """A call whose ``argument`` went through ``change``."""
    return Refusal(name, argument, functools.partial(_changed, argument, change))


def _changed(argument: str, change: Callable[[Any], Any], given: Arguments) -> Arguments:
    return {**given, argument: change(given[argument])}


def other_dtype(tensor: Tensor) -> Tensor:
    return tensor.to(torch.bfloat16 if tensor.dtype is not torch.bfloat16 else torch.float16)


def longer(tensor: Tensor) -> Tensor:
    """Its last dimension has one element more."""
    return torch.cat([tensor, tensor[..., :1]], dim=-1)


def strided(tensor: Tensor) -> Tensor:
    """The same values, every other element of a larger tensor."""
    return torch.stack([tensor, tensor], dim=-1)[..., 0]


def elsewhere(tensor: Tensor) -> Tensor:
    return tensor.to("meta")


def put(value: Any) -> Callable[[Any], Any]:
    """That value, whatever it was."""

    def change(_: Any) -> Any:
        return value

    return change
