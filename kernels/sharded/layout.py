"""Layout of a tensor that is sharded over ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """Layout of a tensor of ``shape``: flat, in ``world_size`` shards of ``length`` elements, padded with zeros."""

    shape: tuple[int, ...]
    world_size: int

    @property
    def numel(self) -> int:
        """Return the number of elements of the tensor."""
        return math.prod(self.shape)

    @property
    def length(self) -> int:
        """Return the number of elements of a shard, padding included."""
        return -(-self.numel // self.world_size)

    @property
    def padded(self) -> int:
        """Return the number of elements of all shards together, padding included."""
        return self.length * self.world_size

    def own(self, rank: int) -> int:
        """Return how many elements of the shard of ``rank`` are not padding."""
        return max(0, min(self.length, self.numel - rank * self.length))

    def rows(self, tensor: Tensor) -> Tensor:
        """Return ``tensor`` as (world_size, length), one row a rank; a view if there is no padding."""
        flat = tensor.reshape(-1)
        if self.padded != self.numel:
            flat = torch.nn.functional.pad(flat, (0, self.padded - self.numel))
        return flat.view(self.world_size, self.length)

    def whole(self, flat: Tensor) -> Tensor:
        """Return the tensor in ``flat``, which has ``padded`` elements: a view of ``shape`` without the padding."""
        return flat[: self.numel].view(self.shape)
