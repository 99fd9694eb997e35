"""How one tensor is cut over ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from conformance.errors import UsageError


@dataclass(frozen=True)
class Layout:
    """A tensor of ``shape``, flat and cut into ``world_size`` shards of ``length`` elements; zeros fill the rest."""

    shape: tuple[int, ...]
    world_size: int

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def length(self) -> int:
        return -(-self.numel // self.world_size)

    @property
    def padded(self) -> int:
        return self.length * self.world_size

    def own(self, rank: int) -> int:
        """How many elements of ``rank``'s shard are not padding."""
        return max(0, min(self.length, self.numel - rank * self.length))

    def rows(self, tensor: Tensor) -> Tensor:
        """``tensor`` as (world_size, length), one row a rank; a view where nothing is padded."""
        flat = tensor.reshape(-1)
        if self.padded != self.numel:
            flat = torch.nn.functional.pad(flat, (0, self.padded - self.numel))
        return flat.view(self.world_size, self.length)

    def whole(self, flat: Tensor) -> Tensor:
        """The tensor that ``flat``, of ``padded`` elements, holds: a view without the padding."""
        return flat[: self.numel].view(self.shape)


def member_of(group: dist.ProcessGroup | None) -> tuple[int, int]:
    """Rank and size in ``group``. Raises UsageError without a process group, and on a rank outside it."""
    if not dist.is_initialized():
        raise UsageError("there is no process group.\n  call torch.distributed.init_process_group first")
    if dist.get_rank(group) < 0:
        raise UsageError("this process is not a rank of the group.\n  make the object on the group's ranks only")
    return dist.get_rank(group), dist.get_world_size(group)
