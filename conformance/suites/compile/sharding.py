"""Input tensors of the sharded cases and their expected values."""

from __future__ import annotations

import torch

#: Sizes that 2 and 3 ranks do not divide, one element, no elements, and a size that both divide.
SHAPES = {"odd": (13,), "matrix": (17, 241), "one": (), "none": (0, 3), "even": (6, 8)}
GRADIENTS = {"a": (5,), "b": (3, 7), "c": (64,), "d": (), "e": (2, 2)}
#: Names of the gradients that have dtype bfloat16; the others have float32.
NARROW = ("c", "e")


def whole(name):
    """Return a float32 parameter, equal on all ranks, with values above and below the range of float16."""
    generator = torch.Generator().manual_seed(len(name))
    tensor = torch.randn(SHAPES[name], generator=generator) * 1000
    if tensor.numel() > 8:
        tensor.view(-1)[:4] = torch.tensor([70000.0, -70000.0, 1e-9, float("inf")])
    return tensor


def gradient(name, rank, micro):
    """Return one rank's gradient in one backward pass."""
    generator = torch.Generator().manual_seed(1000 * micro + 10 * ord(name) + rank)
    values = torch.randn(GRADIENTS[name], generator=generator)
    return values.bfloat16() if name in NARROW else values


def mean_gradient(name, world_size, micros):
    """Return the mean gradient over ranks, summed over backward passes, as a flat float64 tensor."""
    total = torch.zeros(GRADIENTS[name], dtype=torch.float64)
    for micro in micros:
        total += torch.stack([gradient(name, rank, micro).double() for rank in range(world_size)]).mean(0)
    return total.flatten()


def shard(flat, rank, world_size):
    """Return the rank's part of a flat tensor, without padding."""
    length = -(-flat.numel() // world_size)
    return flat[rank * length : (rank + 1) * length]
