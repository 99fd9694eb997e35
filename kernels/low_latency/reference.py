"""Portable all-reduce through ``torch.distributed``: one gather, then the ranks' tensors combined in their order."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


def all_reduce(tensor: Tensor, operation: dist.ReduceOp.RedOpType, group: dist.ProcessGroup | None) -> None:
    """Replace the contiguous ``tensor`` on every rank by the combination of all ranks' tensors."""
    # Sent as bytes, so that the backend need not support the dtype. All arithmetic is done here.
    own = tensor.view(-1).view(torch.uint8)
    gathered = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    if own.numel():
        dist.all_gather(gathered, own, group=group)
    else:
        dist.barrier(group=group)  # an empty tensor still waits for all ranks, as with shared memory
    parts = [part.view(tensor.dtype).view(tensor.shape) for part in gathered]
    tensor.copy_(in_order(parts, operation))


def in_order(parts: list[Tensor], operation: dist.ReduceOp.RedOpType) -> Tensor:
    """Combine ``parts`` (one a rank) from first to last; return the result in their dtype.

    Floating-point parts of 16 bits are combined in float32, others in their own dtype. NaN in any part gives NaN.
    """
    dtype = parts[0].dtype
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    total = parts[0].to(wide, copy=True)
    for part in parts[1:]:
        total = _combined(total, part.to(wide), operation)
    if operation == dist.ReduceOp.AVG:
        total /= len(parts)
    return total.to(dtype)


def _combined(total: Tensor, part: Tensor, operation: dist.ReduceOp.RedOpType) -> Tensor:
    """Return two ranks' tensors combined. NaN wins in minimum and maximum."""
    # part != part is true for NaN only, which replaces a number; a number does not replace NaN.
    if operation == dist.ReduceOp.MIN:
        return torch.where((part != part) | (part < total), part, total)
    if operation == dist.ReduceOp.MAX:
        return torch.where((part != part) | (part > total), part, total)
    return total + part
