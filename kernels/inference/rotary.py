"""Rotary position embeddings (Su et al., 2021, arXiv:2104.09864), in both orders in use."""

from __future__ import annotations

import torch
from torch import Tensor


def rotated(heads: Tensor, positions: Tensor, rotary_dim: int, halves: bool, theta: float) -> Tensor:
    """Return (batch, heads, tokens, channels) with the first ``rotary_dim`` channels rotated, in its own dtype.

    Rotary position embeddings: Su et al., 2021, arXiv:2104.09864. Pair i is rotated by the angle
    position / theta^(2i / rotary_dim). Pairs are channels i and i + rotary_dim / 2 if ``halves``, otherwise 2i and
    2i + 1. ``positions`` is (tokens,) or (batch, tokens).
    """
    index = torch.arange(0, rotary_dim, 2, device=heads.device, dtype=heads.dtype)
    angles = positions.to(heads.device, heads.dtype)[..., None] * theta ** -(index / rotary_dim)
    angles = angles if angles.dim() == 2 else angles[:, None]
    cos, sin = angles.cos(), angles.sin()
    channels, rest = heads[..., :rotary_dim], heads[..., rotary_dim:]
    pairs = channels.reshape(*channels.shape[:-1], 2, -1) if halves else channels.reshape(*heads.shape[:-1], -1, 2).mT
    first, second = pairs.unbind(-2)
    turned = torch.stack([first * cos - second * sin, second * cos + first * sin], dim=-2)
    turned = turned if halves else turned.transpose(-1, -2)
    return torch.cat([turned.flatten(-2), rest], dim=-1)
