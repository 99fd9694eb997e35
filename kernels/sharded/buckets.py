"""Gradient buckets: gradients are reduced over ranks, and each rank keeps its shard of the mean."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from conformance.base.errors import UnknownName, UsageError
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
    """Buffer of one collective: row r of ``rows`` goes to rank r, and ``gradients`` fill the first ``used`` columns."""

    rows: Tensor
    used: int = 0
    gradients: list[_Gradient] = field(default_factory=list)
    work: Any = None
    received: Tensor | None = None


class GradientBuckets:
    """Buckets that reduce gradients to this rank's shard of their mean over ranks, added up over backward passes.

    Gradients are copied into a bucket of ``elements`` elements; each dtype has its own. One collective reduces the
    bucket when the next gradient does not fit. With ``double_buffer`` a second bucket fills in the meantime; the values
    are the same. A gradient larger than a bucket makes that bucket grow. Gradients are divided by the number of ranks
    before they are added up, so a 16-bit sum overflows only where the mean nearly does.

    All ranks have to make the same calls in the same order. ``collectives`` counts collectives, and ``bytes_sent`` the
    bytes that a ring sends for them.
    """

    def __init__(self, elements: int, group: dist.ProcessGroup | None = None, *, double_buffer: bool = True) -> None:
        """Raise UsageError for a size below 1, without a process group, and on a rank outside ``group``."""
        if elements < 1:
            raise UsageError(f"a bucket of {elements} elements cannot hold a gradient.\n  give at least 1")
        self.rank, self.world_size = member_of(group)
        self.bytes_sent = self.collectives = 0
        # Rounded up: every rank has a row, and all rows are of one length.
        self._columns = -(-elements // self.world_size)
        self._group, self._buffers = group, 2 if double_buffer else 1
        self._gradients: dict[str, _Gradient] = {}
        self._rings: dict[tuple[torch.dtype, torch.device], list[_Buffer]] = {}

    def add(
        self, name: str, like: Tensor, *, wire: torch.dtype | None = None, dtype: torch.dtype = torch.float32
    ) -> None:
        """Register gradients of the shape and device of ``like`` under ``name``.

        They are reduced in the dtype ``wire``, or in their own if it is None. ``dtype`` is the dtype of the shard.
        Raises UsageError for a name that is already used.
        """
        if name in self._gradients:
            raise UsageError(f"gradient '{name}' was already added.\n  choose another name")
        layout = Layout(tuple(like.shape), self.world_size)
        shard = torch.zeros(layout.length, dtype=dtype, device=like.device)
        self._gradients[name] = _Gradient(layout, shard, wire)

    def reduce(self, name: str, gradient: Tensor) -> None:
        """Put this rank's ``gradient``, of any strides, into a bucket; it may be changed afterwards.

        Raises UsageError, with nothing changed, for another shape or device and for a dtype that is not floating-point.
        """
        target = self._find(name)
        if tuple(gradient.shape) != target.layout.shape or gradient.device != target.shard.device:
            raise UsageError(
                f"gradient '{name}' has shape {tuple(gradient.shape)} on {gradient.device}; expected "
                f"{target.layout.shape} on {target.shard.device}.\n  give the gradient of the tensor it was added with"
            )
        if not gradient.is_floating_point() or gradient.layout is not torch.strided:
            fact = f"gradient '{name}' is {gradient.dtype}, {gradient.layout}"
            raise UsageError(f"{fact}.\n  give a dense floating-point tensor")
        with torch.no_grad():
            self._put(target, gradient.detach().to(target.wire or gradient.dtype))

    def end_backward(self) -> None:
        """Reduce the gradients that are still in buckets, and wait for all collectives. Then ``shard`` is complete."""
        for ring in self._rings.values():
            self._flush(ring)
            for buffer in ring:
                self._settle(buffer)

    def shard(self, name: str) -> Tensor:
        """Return a view of this rank's part of the flat mean gradient, summed since ``clear``, without padding.

        It is zeros if no gradient came.
        """
        target = self._find(name)
        return target.shard[: target.layout.own(self.rank)]

    def clear(self) -> None:
        """Zero the shards after an update of the parameters, so that the next gradients do not add to them."""
        self.end_backward()
        for gradient in self._gradients.values():
            gradient.accumulated = False
            gradient.shard.zero_()

    def _find(self, name: str) -> _Gradient:
        if name not in self._gradients:
            raise UnknownName("gradient", name, self._gradients, "add it first")
        return self._gradients[name]

    def _put(self, target: _Gradient, gradient: Tensor) -> None:
        """Copy a gradient into the bucket of its dtype and device. Reduces the bucket first if it is full."""
        ring = self._ring(gradient)
        length = target.layout.length
        if ring[0].used and ring[0].used + length > ring[0].rows.shape[1]:
            self._flush(ring)
        buffer = ring[0]
        if length > buffer.rows.shape[1]:  # the bucket is empty here, so it can be replaced by a larger one
            buffer.rows = buffer.rows.new_empty(self.world_size, length)
        buffer.rows[:, buffer.used : buffer.used + length].copy_(target.layout.rows(gradient))
        buffer.used += length
        buffer.gradients.append(target)

    def _ring(self, gradient: Tensor) -> list[_Buffer]:
        """Return the buckets for the gradient's dtype and device, which are made for the first one."""
        key = (gradient.dtype, gradient.device)
        if key not in self._rings:
            shape = (self.world_size, self._columns)
            self._rings[key] = [_Buffer(gradient.new_empty(shape)) for _ in range(self._buffers)]
        return self._rings[key]

    def _flush(self, ring: list[_Buffer]) -> None:
        """Start the collective of the first buffer, and put the oldest one in its place, empty."""
        buffer = ring[0]
        if buffer.used:
            taken = buffer.rows[:, : buffer.used]
            taken.div_(self.world_size)
            buffer.received = buffer.rows.new_empty(buffer.used)
            buffer.work = dist.reduce_scatter(buffer.received, list(taken), group=self._group, async_op=True)
            self.bytes_sent += buffer.received.nbytes * (self.world_size - 1)
            self.collectives += 1
        # With one buffer this is the same buffer, and the next line waits for its collective at once.
        ring.append(ring.pop(0))
        self._settle(ring[0])

    def _settle(self, buffer: _Buffer) -> None:
        """Wait for the buffer's collective, if there is one, and add its results to the shards."""
        if buffer.work is None or buffer.received is None:
            return
        buffer.work.wait()
        parts = torch.split(buffer.received, [gradient.layout.length for gradient in buffer.gradients])
        for gradient, part in zip(buffer.gradients, parts, strict=True):
            # The first gradient is copied, so that a shard need not be zeroed before each backward pass.
            if gradient.accumulated:
                gradient.shard.add_(part.to(gradient.shard.dtype))
            else:
                gradient.shard.copy_(part)
            gradient.accumulated = True
        buffer.used, buffer.work, buffer.received = 0, None, None
        buffer.gradients.clear()
