"""Tensors that wait in host memory while their device works on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from conformance.errors import UnknownName, UsageError


@dataclass
class _Copy:
    """A tensor on its way. ``source`` lives until the device has read it, ``host`` until it is reloaded."""

    host: Tensor
    device: torch.device
    source: Tensor | None
    back: Tensor | None = None
    event: Any = None


class HostCopies:
    """Copies of tensors in host memory, by name, made and taken back on a stream of their own.

    ``offload`` and ``reload`` only begin. After ``wait_offload`` the device's current stream may go on as if the copy
    were made, and the host need not wait; ``wait_reload`` waits for it. On the CPU everything has happened when a call
    returns. ``pinned`` memory lets a device copy while the host goes on; without it the numbers are the same.
    """

    def __init__(self, *, pinned: bool = False) -> None:
        self._pinned = pinned
        self._copies: dict[str, _Copy] = {}
        self._streams: dict[torch.device, Any] = {}

    def offload(self, name: str, tensor: Tensor) -> None:
        """Begin to copy ``tensor``, of any shape, dtype and device. Raises UsageError for a name that is there."""
        if name in self._copies:
            raise UsageError(f"'{name}' is offloaded already.\n  reload it first, or choose another name")
        pinned = self._pinned and tensor.device.type != "cpu"
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pinned)
        copy = self._copies[name] = _Copy(host, tensor.device, tensor.detach())
        with self._beside(copy):
            host.copy_(tensor.detach(), non_blocking=True)

    def wait_offload(self, name: str) -> None:
        """From here on the current stream may overwrite or free the tensor."""
        copy = self._find(name)
        self._wait(copy)
        copy.source = None

    def reload(self, name: str, into: Tensor | None = None) -> None:
        """Begin to copy back, into a new tensor on the device it came from, or ``into`` one of that shape and dtype."""
        copy = self._find(name)
        if into is not None and (into.shape, into.dtype) != (copy.host.shape, copy.host.dtype):
            raise UsageError(
                f"'{name}' is {copy.host.dtype} of {tuple(copy.host.shape)}, and shall go into {into.dtype} of "
                f"{tuple(into.shape)}.\n  give a tensor like the one that was offloaded"
            )
        with self._beside(copy):
            back = torch.empty_like(copy.host, device=copy.device) if into is None else into
            copy.back = back.copy_(copy.host, non_blocking=True)

    def wait_reload(self, name: str) -> Tensor:
        """The tensor, usable on the current stream; the copy is gone. Raises UsageError if nobody reloaded it."""
        copy = self._find(name)
        if copy.back is None:
            raise UsageError(f"'{name}' is not on its way back.\n  call reload first")
        self._wait(copy)
        if copy.device.type != "cpu":
            copy.back.record_stream(torch.accelerator.current_stream(copy.device.index))
            copy.event.synchronize()  # the host memory is about to be given back
        del self._copies[name]
        return copy.back

    def __contains__(self, name: str) -> bool:
        return name in self._copies

    def _find(self, name: str) -> _Copy:
        if name not in self._copies:
            raise UnknownName("offloaded tensor", name, self._copies, "offload it first")
        return self._copies[name]

    @contextmanager
    def _beside(self, copy: _Copy) -> Iterator[None]:
        """On the device's other stream, after what the current one has been given so far."""
        if copy.device.type == "cpu":
            yield
            return
        current = torch.accelerator.current_stream(copy.device.index)
        if copy.device not in self._streams:
            self._streams[copy.device] = torch.Stream(device=copy.device)
        stream = self._streams[copy.device]
        stream.wait_stream(current)
        torch.accelerator.set_stream(stream)
        try:
            yield
            copy.event = stream.record_event()
        finally:
            torch.accelerator.set_stream(current)

    def _wait(self, copy: _Copy) -> None:
        if copy.event is not None:
            torch.accelerator.current_stream(copy.device.index).wait_event(copy.event)
