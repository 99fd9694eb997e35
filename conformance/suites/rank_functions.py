"""Functions of a group of ranks with gradients: sums, gathers, exchanges and shifts, for cases of every area.

PyTorch's own functions with gradients are what cases of parallel engines judge. These are plain: each is one collective
forward and one backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional as F


class Group:
    """Ranks that compute together. A group of one rank moves nothing. ``handle`` is the process group, if not all."""

    def __init__(self, size: int, number: int = 0, handle: Any = None) -> None:
        self.size, self.number, self.handle = size, number, handle

    @classmethod
    def of_all(cls) -> Group:
        """Return the group of all ranks."""
        import torch.distributed as dist

        return cls(dist.get_world_size(), dist.get_rank())

    def part(self, tensor: torch.Tensor, dim: int) -> torch.Tensor:
        """Return this rank's part of a tensor."""
        return tensor.chunk(self.size, dim)[self.number]

    def all_reduced(self, tensor: torch.Tensor, *, largest: bool = False) -> torch.Tensor:
        """Return the sum of a tensor over the ranks, or the largest values."""
        import torch.distributed as dist

        if self.size == 1:
            return tensor
        result = tensor.detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(result, dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM, group=self.handle)
        return result

    def enter(self, x: torch.Tensor) -> torch.Tensor:
        """Return rows that every rank has. Their gradient is the sum of the ranks' gradients."""
        return _Enter.apply(x, self)  # type: ignore[no-untyped-call, no-any-return]

    def add_up(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of the ranks' parts of a sum. Its gradient is each part's gradient."""
        return _AddUp.apply(x, self)  # type: ignore[no-untyped-call, no-any-return]

    def beside(self, x: torch.Tensor) -> torch.Tensor:
        """Return the ranks' columns beside each other: added up among zeros, which changes no bit."""
        if self.size == 1:
            return x
        before, width = self.number * x.shape[-1], x.shape[-1] * self.size
        return self.add_up(F.pad(x, (before, width - before - x.shape[-1])))

    def gathered(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Return the ranks' tensors, all of one shape. The gradient of one is the sum of the ranks' gradients."""
        return list(_Gather.apply(x, self).unbind())  # type: ignore[no-untyped-call]

    def exchanged(self, x: torch.Tensor, given: Sequence[int], taken: Sequence[int]) -> torch.Tensor:
        """Return the rows that all ranks have for this one. The gradients travel in the opposite direction."""
        return _Exchange.apply(x, self, given, taken)  # type: ignore[no-untyped-call, no-any-return]

    def shifted(self, x: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        """Send to the next rank of the ring, and return the tensor of ``shape`` from the previous one.

        The gradients travel in the opposite direction.
        """
        return _Shift.apply(x, self, shape)  # type: ignore[no-untyped-call, no-any-return]


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group) -> torch.Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        return ctx.group.all_reduced(gradient), None


class _AddUp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group) -> torch.Tensor:
        result = group.all_reduced(x)
        return result.view_as(result)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        return gradient, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group) -> torch.Tensor:
        import torch.distributed as dist

        ctx.group = group
        parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(group.size)]
        dist.all_gather(parts, x.contiguous(), group=group.handle)
        return torch.stack(parts)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        return ctx.group.all_reduced(gradient)[ctx.group.number], None


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group, given: Sequence[int], taken: Sequence[int]) -> torch.Tensor:
        ctx.group, ctx.sizes = group, (given, taken)
        return _exchanged(x, group, given, taken)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:  # type: ignore[override]
        given, taken = ctx.sizes
        return _exchanged(gradient, ctx.group, taken, given), None, None, None


def _exchanged(x: torch.Tensor, group: Group, given: Sequence[int], taken: Sequence[int]) -> torch.Tensor:
    import torch.distributed as dist

    out = x.new_empty(sum(taken), *x.shape[1:])
    dist.all_to_all_single(out, x.contiguous(), list(taken), list(given), group=group.handle)
    return out


class _Shift(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group, shape: Sequence[int]) -> torch.Tensor:
        ctx.group, ctx.given = group, x.shape
        return _shifted(x, group, 1, shape)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:  # type: ignore[override]
        return _shifted(gradient, ctx.group, -1, ctx.given), None, None


def _shifted(x: torch.Tensor, group: Group, step: int, shape: Sequence[int]) -> torch.Tensor:
    """Send the tensor ``step`` ranks ahead in the ring, and return the one of ``shape`` from ``step`` ranks behind."""
    import torch.distributed as dist

    sent, received = x.contiguous(), x.new_empty(tuple(shape))
    calls = [
        dist.P2POp(dist.isend, sent, group=group.handle, group_peer=(group.number + step) % group.size),
        dist.P2POp(dist.irecv, received, group=group.handle, group_peer=(group.number - step) % group.size),
    ]
    for work in dist.batch_isend_irecv(calls):
        work.wait()
    return received
