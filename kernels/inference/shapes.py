"""Shapes of tensors: checks of a call's shapes, and the layouts of heads that attention kernels take."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor
from torch.nn import functional as nn

from conformance.kernels.arguments import check_tensor, wrong
from conformance.kernels.specification import Arguments

#: Number of rows of padded keys and values.
ROWS = 128
FLOATING = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
INTEGERS = (torch.int8,)


def check_shapes(given: Arguments, shapes: Mapping[str, str], integers: Collection[str] = ()) -> dict[str, int]:
    """Return the sizes by letter; raise UsageError for a tensor that does not fit its letters.

    ``shapes`` has a letter for each dimension, as in ``{"input": "bsh", "gamma": "h"}``. Equal letters mean equal
    sizes. A leading dot stands for any number of dimensions. All tensors must be contiguous, on one device and of the
    first one's dtype; those named in ``integers`` are int8.
    """
    sizes: dict[str, int] = {}
    leading: Tensor | None = None
    for name, letters in shapes.items():
        dtypes = FLOATING if leading is None else (leading.dtype,)
        device = None if leading is None else leading.device
        tensor = check_tensor(name, given[name], dtypes=INTEGERS if name in integers else dtypes, device=device)
        _match(name, tensor, letters, sizes)
        leading = tensor if leading is None and name not in integers else leading
    return sizes


def _match(name: str, tensor: Tensor, letters: str, sizes: dict[str, int]) -> None:
    """Add the tensor's sizes to ``sizes``; raise UsageError where a letter has another size already."""
    fixed = letters.lstrip(".")
    shape = tuple(tensor.shape)
    matches = len(shape) >= len(fixed) if letters != fixed else len(shape) == len(fixed)
    last = shape[len(shape) - len(fixed) :] if fixed else ()
    if not matches or any(sizes.get(letter, size) != size for letter, size in zip(fixed, last, strict=True)):
        expected = ", ".join(f"{letter}={sizes[letter]}" if letter in sizes else letter for letter in fixed)
        begin = "..., " if letters != fixed else ""
        raise wrong(name, f"shape ({begin}{expected})", shape)
    sizes.update(zip(fixed, last, strict=True))


def padded_width(width: int) -> int:
    """Return the width that a head's channels are padded to: below 32 to 32, below 64 to 64, all others to 128."""
    return 32 if width < 32 else 64 if width < 64 else 128


def padded(tensor: Tensor, rows: int, width: int) -> Tensor:
    """Return ``tensor`` with zeros appended to its last two dimensions, up to ``rows`` and ``width``."""
    return nn.pad(tensor, (0, width - tensor.shape[-1], 0, rows - tensor.shape[-2]))


def split_heads(tensor: Tensor, width: int) -> Tensor:
    """Return (batch, tokens, heads * width) as (batch, heads, tokens, width), a view where that is possible."""
    batch, tokens, channels = tensor.shape
    return tensor.reshape(batch, tokens, channels // width, width).transpose(1, 2)


def heads_first(tensor: Tensor, heads: int, width: int, rows: int = 0) -> Tensor:
    """Return (batch, tokens, heads * channels) as (batch, heads, tokens, channels), padded to ``rows`` and ``width``.

    ``rows`` 0 keeps the number of tokens. The result is contiguous.
    """
    split = split_heads(tensor, tensor.shape[-1] // heads)
    return padded(split, rows or split.shape[-2], width).contiguous(memory_format=torch.contiguous_format)
