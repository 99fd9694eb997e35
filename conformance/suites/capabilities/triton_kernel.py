"""Triton kernel that adds one. Import this module only where Triton is declared: the package may be missing."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _add_one(source, target, count, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < count
    tl.store(target + offsets, tl.load(source + offsets, mask=inside) + 1, mask=inside)


def add_one(source: torch.Tensor) -> torch.Tensor:
    """Return ``source + 1`` for a contiguous tensor, computed by a kernel with blocks of 128 elements."""
    # Filled, so that an element that the kernel misses is visible.
    target = torch.full_like(source, -1.0)
    _add_one[(triton.cdiv(source.numel(), 128),)](source, target, source.numel(), BLOCK=128)
    return target
