"""Allocators that count wrongly, or end badly when memory runs out."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from tests.defects.counting_device import MIB, SEGMENT, CountingDevice
from tests.defects.faults import Where
from tests.defects.mutant import Mutant
from tests.defects.stand_ins import COUNTING, on


class CountsHalf(CountingDevice):
    def size_of(self, num_bytes: int) -> int:
        return num_bytes // 2


class RoundsUpFar(CountingDevice):
    def size_of(self, num_bytes: int) -> int:
        return num_bytes + 3 * MIB


class NeverFrees(CountingDevice):
    def free(self, key: int, size: int) -> None:
        self._live.pop(key, None)


class CountsViews(CountingDevice):
    def count(self, tensor: torch.Tensor) -> None:
        if tensor._base is not None or tensor.storage_offset():
            size = self.size_of(tensor.untyped_storage().nbytes())
            weakref.finalize(tensor, self.free, -1, size)
            self.take(size)
        super().count(tensor)


class SamplesThePeak(CountingDevice):
    """Defect: the peak is the largest value at the times when it was read."""

    def take(self, size: int) -> None:
        before = self._peak
        super().take(size)
        self._peak = before

    def max_memory_allocated(self, device_index: int | None = None) -> int:
        self._peak = max(self._peak, self._allocated)
        return self._peak


class ResetsToZero(CountingDevice):
    def reset_max_memory_allocated(self, device_index: int | None = None) -> None:
        self._peak = 0


class NeverResets(CountingDevice):
    def reset_max_memory_allocated(self, device_index: int | None = None) -> None:
        pass


class PeakOfFactories(CountingDevice):
    """Defect: the peak covers tensors that the user creates and misses results of operations."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = self._peak
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if any(isinstance(arg, torch.Tensor) for arg in args):
            self._peak = before
        return result


class ReservesTooLittle(CountingDevice):
    def memory_reserved(self, device_index: int | None = None) -> int:
        return self._allocated // 2


class CachedIsAllocated(CountingDevice):
    def memory_cached(self, device_index: int | None = None) -> int:
        return self._allocated

    def memory_reserved(self, device_index: int | None = None) -> int:
        return self._allocated + SEGMENT


class StaleStats(CountingDevice):
    def memory_stats(self, device_index: int | None = None) -> dict[str, int]:
        return {"allocated_bytes.all.current": 0, "allocated_bytes.all.peak": self._peak}


class OtherStats(CountingDevice):
    def memory_stats(self, device_index: int | None = None) -> dict[str, int]:
        return {"bytes": self._allocated}


class CacheGrows(CountingDevice):
    def empty_cache(self) -> None:
        self._reserved += SEGMENT


class CacheTakesLiveTensors(CountingDevice):
    def empty_cache(self) -> None:
        for reference in list(self._live.values()):
            storage = reference()
            if storage is not None:
                torch.empty(0, dtype=torch.uint8).set_(storage).zero_()


class TotalInMiB(CountingDevice):
    def total_memory(self, device_index: int | None = None) -> int:
        return super().total_memory() // MIB


class AvailableIsTotal(CountingDevice):
    def available_memory(self, device_index: int | None = None) -> int:
        return self.total_memory()


class PlainError(CountingDevice):
    def run_out(self, size: int) -> None:
        raise RuntimeError(f"can't allocate {size} bytes")


class NeverRunsOut(CountingDevice):
    def run_out(self, size: int) -> None:
        pass


class SilentError(CountingDevice):
    def run_out(self, size: int) -> None:
        raise torch.OutOfMemoryError("")


class LeaksWhenOut(CountingDevice):
    def run_out(self, size: int) -> None:
        self._allocated += MIB
        super().run_out(size)


class HarmsWhenOut(CacheTakesLiveTensors):
    def run_out(self, size: int) -> None:
        self.empty_cache()
        super().run_out(size)


class DeadWhenOut(CountingDevice):
    """Defect: after running out of memory nothing can be allocated any more."""

    _dead = False

    def size_of(self, num_bytes: int) -> int:
        return 1 << 40 if self._dead else super().size_of(num_bytes)

    def run_out(self, size: int) -> None:
        self._dead = True
        super().run_out(size)


#: A defect and a case that it turns red.
_RED: tuple[tuple[type[CountingDevice], str], ...] = (
    (CountsHalf, "accelerator.memory.allocated_follows[1048577]"),
    (CountsHalf, "profiling.memory.monotone"),
    (CountsHalf, "capabilities.memory.stats"),
    (RoundsUpFar, "accelerator.memory.allocated_follows[1]"),
    (NeverFrees, "accelerator.memory.allocated_follows[513]"),
    (NeverFrees, "profiling.memory.monotone"),
    (NeverFrees, "profiling.oom.filled"),
    (CountsViews, "accelerator.memory.views_count_once"),
    (SamplesThePeak, "accelerator.memory.peak"),
    (SamplesThePeak, "capabilities.memory.peak"),
    (SamplesThePeak, "ulysses_alst.peak[loss]"),
    (ResetsToZero, "accelerator.memory.peak_reset[reset_max_memory_allocated]"),
    (NeverResets, "accelerator.memory.peak_reset[reset_peak_memory_stats]"),
    (NeverResets, "ulysses_alst.peak[mlp]"),
    (PeakOfFactories, "accelerator.memory.peak_inside_operations"),
    (PeakOfFactories, "ulysses_alst.peak[mlp]"),
    (ReservesTooLittle, "accelerator.memory.order"),
    (CachedIsAllocated, "accelerator.memory.cached_is_reserved"),
    (StaleStats, "accelerator.memory.stats"),
    (OtherStats, "accelerator.memory.stats"),
    (CacheGrows, "accelerator.memory.empty_cache_gives_back"),
    (CacheTakesLiveTensors, "accelerator.memory.empty_cache_keeps_values"),
    (CacheTakesLiveTensors, "accelerator.memory.resets"),
    (TotalInMiB, "accelerator.memory.order"),
    (TotalInMiB, "capabilities.memory.total"),
    (AvailableIsTotal, "accelerator.memory.available_drops"),
    (PlainError, "profiling.oom.single"),
    (PlainError, "profiling.oom.inside_operation"),
    (NeverRunsOut, "profiling.oom.single"),
    (NeverRunsOut, "profiling.oom.filled"),
    (SilentError, "profiling.oom.message"),
    (LeaksWhenOut, "profiling.oom.filled"),
    (HarmsWhenOut, "profiling.oom.single"),
    (DeadWhenOut, "profiling.oom.single"),
    (DeadWhenOut, "capabilities.memory.oom"),
)

MUTANTS: tuple[Mutant, ...] = tuple(
    on(COUNTING, allocator.__name__, case, Where.ALLOCATOR, broken=allocator) for allocator, case in _RED
)
