"""Gradients, reduced over ranks in buckets, each rank keeping its shard of the mean."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from conformance.errors import UnknownName, UsageError
from conformance.kernels.groups import member_of
from conformance.kernels.sharded.layout import Layout


@dataclass
class _Gradient:
    layout: Layout
    shard: Tensor
    wire: torch.dtype | None
    accumulated: bool = False


@dataclass
class _Buffer:
    """Row r of ``rows`` goes to rank r; the first ``used`` columns are taken, by ``tasks`` of so many columns each."""

    rows: Tensor
    used: int = 0
    tasks: list[_Gradient] = field(default_factory=list)
    work: Any = None
    received: Tensor | None = None


class GradientBuckets:
    """The mean over ranks of gradients, this rank's shard of each, added up over backward passes.

    Gradients are copied into a bucket of ``elements`` elements (a dtype has its own), which is reduced by one
    collective when the next does not fit. With ``double_buffer`` it is on its way while a second one fills; the numbers
    are the same. A gradient larger than a bucket makes that bucket grow. Gradients are divided by the number of ranks
    before they are added up, so a 16-bit sum overflows only where the mean nearly does.

    All ranks call everything alike and in the same order. ``collectives`` counts, ``bytes_sent`` is what a ring needs.
    """

    def __init__(self, elements: int, group: dist.ProcessGroup | None = None, *, double_buffer: bool = True) -> None:
        """Raises UsageError for a size below 1, without a process group, and on a rank outside ``group``."""
        if elements < 1:
            raise UsageError(f"a bucket of {elements} elements holds nothing.\n  give at least 1")
        self.rank, self.world_size = member_of(group)
        self.bytes_sent = self.collectives = 0
        self._columns = -(-elements // self.world_size)
        self._group, self._buffers = group, 2 if double_buffer else 1
        self._gradients: dict[str, _Gradient] = {}
        self._rings: dict[tuple[torch.dtype, torch.device], list[_Buffer]] = {}

    def add(
        self, name: str, like: Tensor, *, wire: torch.dtype | None = None, dtype: torch.dtype = torch.float32
    ) -> None:
        """Expect gradients of ``like``'s shape and device under ``name``.

        ``wire`` is the dtype they are reduced in, or None for the one each comes in; ``dtype`` is that of the shard
        they add up to.
        """
        if name in self._gradients:
            raise UsageError(f"gradient '{name}' is there already.\n  choose another name")
        layout = Layout(tuple(like.shape), self.world_size)
        shard = torch.zeros(layout.length, dtype=dtype, device=like.device)
        self._gradients[name] = _Gradient(layout, shard, wire)

    def reduce(self, name: str, gradient: Tensor) -> None:
        """Take this rank's ``gradient``, of any strides; it may be changed afterwards.

        Raises UsageError, with nothing changed, for another shape or device and for a dtype that is not floating-point.
        """
        target = self._find(name)
        if tuple(gradient.shape) != target.layout.shape or gradient.device != target.shard.device:
            raise UsageError(
                f"gradient '{name}' has shape {tuple(gradient.shape)} on {gradient.device}; expected "
                f"{target.layout.shape} on {target.shard.device}.\n  give the gradient of the tensor it was added with"
            )
        if not gradient.is_floating_point() or gradient.layout is not torch.strided:
            raise UsageError(f"gradient '{name}' is {gradient.dtype}, {gradient.layout}.\n  give a dense floating one")
        with torch.no_grad():
            self._put(target, gradient.detach().to(target.wire or gradient.dtype))

    def end_backward(self) -> None:
        """Reduce what is still in a bucket, and wait for all of it: ``shard`` is complete."""
        for ring in self._rings.values():
            self._flush(ring)
            for buffer in ring:
                self._settle(buffer)

    def shard(self, name: str) -> Tensor:
        """A view of this rank's part of the flat mean gradient since ``clear``, without padding; zeros if none came."""
        target = self._find(name)
        return target.shard[: target.layout.own(self.rank)]

    def clear(self) -> None:
        """The parameters are updated: the next gradients replace the shards instead of adding to them."""
        self.end_backward()
        for gradient in self._gradients.values():
            gradient.accumulated = False
            gradient.shard.zero_()

    def _find(self, name: str) -> _Gradient:
        if name not in self._gradients:
            raise UnknownName("gradient", name, self._gradients, "add it first")
        return self._gradients[name]

    def _put(self, target: _Gradient, gradient: Tensor) -> None:
        ring = self._ring(gradient)
        length = target.layout.length
        if ring[0].used and ring[0].used + length > ring[0].rows.shape[1]:
            self._flush(ring)
        buffer = ring[0]
        if length > buffer.rows.shape[1]:
            buffer.rows = buffer.rows.new_empty(self.world_size, length)
        buffer.rows[:, buffer.used : buffer.used + length].copy_(target.layout.rows(gradient))
        buffer.used += length
        buffer.tasks.append(target)

    def _ring(self, gradient: Tensor) -> list[_Buffer]:
        key = (gradient.dtype, gradient.device)
        if key not in self._rings:
            shape = (self.world_size, self._columns)
            self._rings[key] = [_Buffer(gradient.new_empty(shape)) for _ in range(self._buffers)]
        return self._rings[key]

    def _flush(self, ring: list[_Buffer]) -> None:
        """Send the first buffer off, and put the one that has had the most time in its place, empty."""
        buffer = ring[0]
        if buffer.used:
            taken = buffer.rows[:, : buffer.used]
            taken.div_(self.world_size)
            buffer.received = buffer.rows.new_empty(buffer.used)
            buffer.work = dist.reduce_scatter(buffer.received, list(taken), group=self._group, async_op=True)
            self.bytes_sent += buffer.received.nbytes * (self.world_size - 1)
            self.collectives += 1
        ring.append(ring.pop(0))
        self._settle(ring[0])

    def _settle(self, buffer: _Buffer) -> None:
        """Wait for a buffer that is on its way, and add what it brings to the shards."""
        if buffer.work is None or buffer.received is None:
            return
        buffer.work.wait()
        parts = torch.split(buffer.received, [task.layout.length for task in buffer.tasks])
        for task, part in zip(buffer.tasks, parts, strict=True):
            if task.accumulated:
                task.shard.add_(part.to(task.shard.dtype))
            else:
                task.shard.copy_(part)
            task.accumulated = True
        buffer.used, buffer.work, buffer.received = 0, None, None
        buffer.tasks.clear()
