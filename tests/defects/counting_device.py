"""The host as a device with a small memory and an allocator that counts, for testing the cases about its numbers.

Every storage that an operation makes is counted until it dies. Nothing is really limited: what does not fit into
``TOTAL`` raises torch.OutOfMemoryError, as a device would.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.accelerators.registry import resolve

MIB = 1 << 20
TOTAL = 192 * MIB
BLOCK = 512
SEGMENT = 2 * MIB


def rounded(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def _tensors(result: Any) -> list[torch.Tensor]:
    parts = result if isinstance(result, (tuple, list)) else (result,)
    return [part for part in parts if isinstance(part, torch.Tensor)]


class CountingDevice(TorchDispatchMode):
    """Our CPU accelerator, counting memory while it is entered as a context."""

    def __init__(self) -> None:
        super().__init__()
        self._host = resolve("cpu").load()
        self._allocated = self._peak = self._reserved = self._reserved_peak = 0
        self._live: dict[int, weakref.ref[Any]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_host"], name)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            result = func(*args, **(kwargs or {}))
        except RuntimeError as error:
            if "allocate memory" not in str(error):
                raise
            self.run_out(1 << 50)
            raise
        for tensor in _tensors(result):
            self.count(tensor)
        return result

    def count(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata in self._live or not storage.nbytes() or tensor.device.type != "cpu":
            return
        size = self.size_of(storage.nbytes())
        if self._allocated + size > TOTAL:
            self.run_out(size)
        self._live[storage._cdata] = weakref.ref(storage)
        weakref.finalize(storage, self.free, storage._cdata, size)
        self.take(size)

    def size_of(self, num_bytes: int) -> int:
        return rounded(num_bytes, BLOCK)

    def take(self, size: int) -> None:
        self._allocated += size
        self._peak = max(self._peak, self._allocated)
        self._reserved = max(self._reserved, rounded(self._allocated, SEGMENT))
        self._reserved_peak = max(self._reserved_peak, self._reserved)

    def free(self, key: int, size: int) -> None:
        self._live.pop(key, None)
        self._allocated -= size

    def run_out(self, size: int) -> None:
        raise torch.OutOfMemoryError(f"out of memory: {size} bytes do not fit, {self._allocated} are allocated")

    # --- the interface ----------------------------------------------------------------------------------------------

    def empty_cache(self) -> None:
        self._reserved = rounded(self._allocated, SEGMENT)

    def memory_allocated(self, device_index: int | None = None) -> int:
        return self._allocated

    def max_memory_allocated(self, device_index: int | None = None) -> int:
        return self._peak

    def memory_reserved(self, device_index: int | None = None) -> int:
        return self._reserved

    def max_memory_reserved(self, device_index: int | None = None) -> int:
        return self._reserved_peak

    def memory_cached(self, device_index: int | None = None) -> int:
        return self.memory_reserved(device_index)

    def max_memory_cached(self, device_index: int | None = None) -> int:
        return self.max_memory_reserved(device_index)

    def reset_max_memory_allocated(self, device_index: int | None = None) -> None:
        self._peak = self._allocated

    def reset_max_memory_cached(self, device_index: int | None = None) -> None:
        self._reserved_peak = self._reserved

    def reset_peak_memory_stats(self, device_index: int | None = None) -> None:
        self.reset_max_memory_allocated(device_index)
        self.reset_max_memory_cached(device_index)

    def memory_stats(self, device_index: int | None = None) -> dict[str, int]:
        return {
            "allocated_bytes.all.current": self.memory_allocated(device_index),
            "allocated_bytes.all.peak": self.max_memory_allocated(device_index),
        }

    def total_memory(self, device_index: int | None = None) -> int:
        return TOTAL

    def available_memory(self, device_index: int | None = None) -> int:
        return TOTAL - self.memory_allocated(device_index)
