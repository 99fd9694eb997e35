"""Sharded parameters: each rank keeps a shard, and the whole is gathered where it is used.

The casts are those of DeepCompile's runtime, whose gather sends a parameter in the narrow dtype it is used in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from conformance.base.errors import UnknownName, UsageError
from conformance.kernels.groups import member_of
from conformance.kernels.sharded.host_copies import HostCopies
from conformance.kernels.sharded.layout import Layout

# PyTorch 2.13 renamed the function, and warns when the old name is used.
_gather_into: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


@dataclass
class _GatheredCopy:
    """Whole parameter, flat and padded, in one dtype."""

    flat: Tensor
    valid: bool = True


@dataclass
class _Parameter:
    layout: Layout
    shard: Tensor
    persistent: bool
    copies: dict[torch.dtype, _GatheredCopy] = field(default_factory=dict)
    released: int = 0

    def has(self, dtype: torch.dtype) -> bool:
        """Return True if the parameter has been gathered in ``dtype`` since the shards last changed."""
        return dtype in self.copies and self.copies[dtype].valid


@dataclass
class _PendingGather:
    """Collective in progress, with the shards of several parameters one after the other."""

    work: Any
    sent: Tensor
    received: Tensor
    members: dict[str, torch.dtype]


class ShardedParameters:
    """Parameters by name, sharded over the ranks of ``group`` (all ranks if None).

    All ranks have to make the same calls of ``add``, ``gather``, ``prefetch``, ``release``, ``keep`` and ``invalidate``
    in the same order. ``bytes_sent`` counts the bytes that this rank has sent to others, ``collectives`` the
    collectives.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, *, pinned: bool = False) -> None:
        """Make an empty set of parameters. With ``pinned``, offloaded shards are in pinned host memory.

        Raises UsageError without a process group, and on a rank outside ``group``.
        """
        self.rank, self.world_size = member_of(group)
        self.bytes_sent = self.collectives = 0
        self._group = group
        self._parameters: dict[str, _Parameter] = {}
        self._pending: dict[tuple[str, torch.dtype], _PendingGather] = {}
        self._offloaded = HostCopies(pinned=pinned)

    def add(self, name: str, whole: Tensor, *, persistent: bool = False) -> Tensor:
        """Keep this rank's shard of ``whole``, and return it.

        ``whole`` may have any shape and strides, and is the same on all ranks. The shard is flat, of
        ceil(numel / ranks) elements. It may be written to; call ``invalidate`` afterwards. Raises UsageError for a name
        that is already used and for a tensor that is not floating-point.
        """
        if name in self._parameters:
            raise UsageError(f"parameter '{name}' was already added.\n  choose another name")
        if not whole.is_floating_point():
            raise UsageError(f"parameter '{name}' is {whole.dtype}.\n  only floating-point tensors are sharded")
        layout = Layout(tuple(whole.shape), self.world_size)
        shard = layout.rows(whole.detach())[self.rank].clone()
        self._parameters[name] = _Parameter(layout, shard, persistent=False)
        if persistent:
            self.keep(name)
        return shard

    def gather(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """Return the whole parameter in ``dtype`` (the shard's own if None), with the bits of a cast after gathering.

        The shard is cast before the collective if that makes it smaller. Until ``invalidate``, a copy that was gathered
        or prefetched in this dtype is used again. A copy in the shard's own dtype is cast; other copies are not used.
        The tensor is valid until ``release``, which may free its memory.
        """
        parameter = self._find(name)
        dtype = _floating(dtype or parameter.shard.dtype)
        self._finish_gather(name, dtype)
        if not parameter.has(dtype):
            # A cast of the copy that is there is cheaper than a collective, and gives the same bits.
            if parameter.has(parameter.shard.dtype):
                self._store(parameter, dtype, parameter.copies[parameter.shard.dtype].flat)
            else:
                self._start_gather({name: dtype})
                self._finish_gather(name, dtype)
        return parameter.layout.whole(parameter.copies[dtype].flat)

    def prefetch(self, wanted: Mapping[str, torch.dtype | None]) -> None:
        """Start to gather parameters in the ``wanted`` dtypes, with one collective for each dtype on the wire.

        Parameters that are gathered or pending are left out. The next ``gather`` of a name waits for its collective.
        """
        groups: dict[torch.dtype, dict[str, torch.dtype]] = {}
        for name, wanted_dtype in wanted.items():
            parameter = self._find(name)
            dtype = _floating(wanted_dtype or parameter.shard.dtype)
            gathered = parameter.has(dtype) or parameter.has(parameter.shard.dtype)
            if not gathered and (name, dtype) not in self._pending:
                groups.setdefault(_on_the_wire(parameter, dtype), {})[name] = dtype
        for members in groups.values():
            self._start_gather(members)

    def release(self, name: str, users: int = 1) -> None:
        """Count one of ``users`` uses as done; after the last one, free the gathered copies unless they are persistent.

        Freed tensors must not be touched: their storage has 0 bytes. Raises UsageError if nothing is gathered.
        """
        parameter = self._find(name)
        if not parameter.copies or users < 1:
            raise UsageError(f"parameter '{name}' is not gathered, or has {users} users.\n  call gather first")
        parameter.released += 1
        if parameter.released < users:
            return
        parameter.released = 0
        if not parameter.persistent:
            for copy in parameter.copies.values():
                _free(copy.flat)
            parameter.copies.clear()

    def keep(self, name: str) -> None:
        """Gather the parameter now, in its own dtype, and make its gathered copies persistent."""
        self._find(name).persistent = True
        self.gather(name)

    def invalidate(self) -> None:
        """Discard all gathered values after a change of the shards. Memory of persistent copies is used again."""
        # Pending collectives carry the old shards. Stored now, they become invalid below with all other copies.
        for name, dtype in list(self._pending):
            self._finish_gather(name, dtype)
        for parameter in self._parameters.values():
            for copy in parameter.copies.values():
                copy.valid = False

    def offload(self, name: str) -> None:
        """Move the shard to host memory. Its storage on the device has 0 bytes until ``reload``."""
        parameter = self._find(name)
        self._offloaded.offload(name, parameter.shard)
        # Before the memory is freed: the copy to the host may still be running.
        self._offloaded.wait_offload(name)
        _free(parameter.shard)

    def reload(self, name: str) -> None:
        """Move the shard back into its own tensor. ``gather`` does this as well."""
        parameter = self._find(name)
        if name not in self._offloaded:
            raise UsageError(f"parameter '{name}' is not offloaded.\n  call offload first")
        storage, size = parameter.shard.untyped_storage(), parameter.shard.nbytes
        if storage.nbytes() != size:
            storage.resize_(size)
        self._offloaded.reload(name, into=parameter.shard)
        self._offloaded.wait_reload(name)

    def _find(self, name: str) -> _Parameter:
        if name not in self._parameters:
            raise UnknownName("parameter", name, self._parameters, "add it first")
        return self._parameters[name]

    def _start_gather(self, members: dict[str, torch.dtype]) -> None:
        """Start one collective for parameters that have the same dtype on the wire."""
        for name in members:
            if name in self._offloaded:
                self.reload(name)
        parameters = [self._parameters[name] for name in members]
        wire = _on_the_wire(parameters[0], next(iter(members.values())))
        sent = torch.cat([parameter.shard.to(wire) for parameter in parameters])
        received = sent.new_empty(sent.numel() * self.world_size)
        work = _gather_into(received, sent, group=self._group, async_op=True)
        self.bytes_sent += sent.nbytes * (self.world_size - 1)
        self.collectives += 1
        # It keeps both tensors alive until the collective has ended.
        pending = _PendingGather(work, sent, received, dict(members))
        self._pending.update(dict.fromkeys(members.items(), pending))

    def _finish_gather(self, name: str, dtype: torch.dtype) -> None:
        """Wait for the collective with this parameter, if there is one, and store all parameters of it."""
        pending = self._pending.get((name, dtype))
        if pending is None:
            return
        pending.work.wait()
        rows, start = pending.received.view(self.world_size, pending.sent.numel()), 0
        for member, wanted in pending.members.items():
            parameter = self._parameters[member]
            length = parameter.layout.length
            self._store(parameter, wanted, rows[:, start : start + length])
            start += length
            del self._pending[member, wanted]

    def _store(self, parameter: _Parameter, dtype: torch.dtype, source: Tensor) -> None:
        """Copy ``source`` into the parameter's copy of ``dtype``, whose memory is used again, and mark it as valid."""
        copy = parameter.copies.get(dtype)
        if copy is None:
            flat = torch.empty(parameter.layout.padded, dtype=dtype, device=parameter.shard.device)
            copy = parameter.copies[dtype] = _GatheredCopy(flat)
        copy.flat.view(source.shape).copy_(source)
        copy.valid = True


def _on_the_wire(parameter: _Parameter, dtype: torch.dtype) -> torch.dtype:
    """Return the narrower of the shard's dtype and ``dtype``. Widening loses nothing, so it can follow the gather."""
    return dtype if dtype.itemsize <= parameter.shard.itemsize else parameter.shard.dtype


def _floating(dtype: torch.dtype) -> torch.dtype:
    if not dtype.is_floating_point:
        raise UsageError(f"a parameter cannot be gathered as {dtype}.\n  ask for a floating-point dtype")
    return dtype


def _free(tensor: Tensor) -> None:
    """Free the tensor's memory. The tensor and its views stay, without content."""
    if tensor.device.type != "cpu":
        # Work on the current stream may still read the memory, so the allocator must not give it away before.
        tensor.record_stream(torch.accelerator.current_stream(tensor.device.index))
    storage = tensor.untyped_storage()
    if storage.resizable():  # memory that a NumPy array shares is freed with the array
        storage.resize_(0)
