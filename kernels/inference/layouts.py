"""Layouts of attention kernels: order of the heads, and padding."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as nn

#: Number of rows of padded keys and values.
ROWS = 128


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
