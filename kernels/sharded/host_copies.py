"""Offloading of tensors to host memory and back, while their device continues to compute."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from conformance.base.errors import UnknownName, UsageError


@dataclass
class _HostCopy:
    """Offloaded tensor. ``source`` is kept until the device has read it, ``host`` until it is reloaded."""

    host: Tensor
    device: torch.device
    source: Tensor | None
    back: Tensor | None = None
    event: Any = None


class HostCopies:
    """Copies of tensors in host memory, by name. A stream of their own makes them and copies them back.

    ``offload`` and ``reload`` only start a copy. After ``wait_offload`` the device's current stream waits for the copy,
    and the host continues. After ``wait_reload`` the host has waited as well. On the CPU a copy is complete when the
    call returns. With ``pinned`` memory the device copies while the host continues; the values are the same without it.
    """

    def __init__(self, *, pinned: bool = False) -> None:
        self._pinned = pinned
        self._copies: dict[str, _HostCopy] = {}
        self._streams: dict[torch.device, Any] = {}

    def offload(self, name: str, tensor: Tensor) -> None:
        """Start to copy ``tensor``, of any shape, dtype and device. Raises UsageError for a name already in use."""
        if name in self._copies:
            raise UsageError(f"'{name}' is offloaded already.\n  reload it first, or choose another name")
        # A copy from host to host gains nothing from locked pages.
        pinned = self._pinned and tensor.device.type != "cpu"
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pinned)
        copy = self._copies[name] = _HostCopy(host, tensor.device, tensor.detach())
        with self._copy_stream(copy):
            host.copy_(tensor.detach(), non_blocking=True)

    def wait_offload(self, name: str) -> None:
        """Make the current stream wait for the copy; afterwards it may overwrite or free the tensor."""
        copy = self._find(name)
        self._wait(copy)
        copy.source = None

    def reload(self, name: str, into: Tensor | None = None) -> None:
        """Start to copy back, to a new tensor on the original device, or to ``into`` of the same shape and dtype."""
        copy = self._find(name)
        if into is not None and (into.shape, into.dtype) != (copy.host.shape, copy.host.dtype):
            raise UsageError(
                f"'{name}' is {copy.host.dtype} of {tuple(copy.host.shape)} and cannot be reloaded into {into.dtype} "
                f"of {tuple(into.shape)}.\n  give a tensor like the one that was offloaded"
            )
        with self._copy_stream(copy):
            back = torch.empty_like(copy.host, device=copy.device) if into is None else into
            copy.back = back.copy_(copy.host, non_blocking=True)

    def wait_reload(self, name: str) -> Tensor:
        """Wait for the reload and return the tensor, usable on the current stream; the host copy is deleted.

        Raises UsageError if ``reload`` was not called.
        """
        copy = self._find(name)
        if copy.back is None:
            raise UsageError(f"'{name}' is not being reloaded.\n  call reload first")
        self._wait(copy)
        if copy.device.type != "cpu":
            copy.back.record_stream(torch.accelerator.current_stream(copy.device.index))
            copy.event.synchronize()  # the next line frees the host memory, which the device must have read
        del self._copies[name]
        return copy.back

    def __contains__(self, name: str) -> bool:
        return name in self._copies

    def _find(self, name: str) -> _HostCopy:
        if name not in self._copies:
            raise UnknownName("offloaded tensor", name, self._copies, "offload it first")
        return self._copies[name]

    @contextmanager
    def _copy_stream(self, copy: _HostCopy) -> Iterator[None]:
        """Run the block on the device's copy stream, after the work that the current stream has so far."""
        if copy.device.type == "cpu":
            yield
            return
        current = torch.accelerator.current_stream(copy.device.index)
        if copy.device not in self._streams:
            self._streams[copy.device] = torch.Stream(device=copy.device)
        stream = self._streams[copy.device]
        stream.wait_stream(current)  # the tensor may still be computed there
        torch.accelerator.set_stream(stream)
        try:
            yield
            copy.event = stream.record_event()
        finally:
            torch.accelerator.set_stream(current)

    def _wait(self, copy: _HostCopy) -> None:
        if copy.event is not None:
            torch.accelerator.current_stream(copy.device.index).wait_event(copy.event)
