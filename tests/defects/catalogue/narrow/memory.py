"""Device memory and the numbers about it, wrong for one size, one order of calls or one way of asking."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from tests.defects.faults import Fault, Where
from tests.defects.mutant import Mutant
from tests.defects.spoiling import Call, accelerator, on_device, result_of, spoiled, together

MIB = 1 << 20
NUMBERS = "defect class of memory accounting"
REUSE = "DeepSpeed 56005d2b2: uninitialised memory"
GROWTH = "DeepSpeed cd20a3bbc: memory that only grows"
STATISTICS = "memory statistics negative or constant"
FREES = "empty_cache frees live memory"


def memory(name: str, family: str, precedent: str, caught_by: str, *touch: str, **fault: Any) -> Mutant:
    return Mutant(Fault(name, family, precedent, Where.ALLOCATOR, caught_by, **fault), touch)


# --- values -------------------------------------------------------------------------------------------------------


def _up_to_32_mib(result: torch.Tensor, args: tuple[Any, ...]) -> None:
    """What a copy from the host has beyond 32 MiB stays behind."""
    if args[0].device.type == "cpu" and result.nbytes > 32 * MIB and result.dim() == 1:
        result[32 * MIB // result.itemsize :] = 0


class _Slots:
    """Sixty-four small blocks that live; the next one gets the memory of the first."""

    def __init__(self) -> None:
        self._live: list[Any] = []

    def full(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = call(*args, **kwargs)
        if not on_device(result) or result.nbytes > 4096 or result.dtype is not torch.uint8:
            return result
        live = [tensor for tensor in (one() for one in self._live) if tensor is not None]
        self._live = [*map(weakref.ref, live), weakref.ref(result)]
        if len(live) >= 64:
            # What one memory under two names would look like.
            shared = min(live[0].numel(), result.numel())
            live[0][:shared] = result[:shared]
        return result


def _bytes_left(result: torch.Tensor, args: tuple[Any, ...]) -> None:
    """Memory is cleared in words of four bytes; what fills no word keeps what was there."""
    rest = result.numel() % 4
    if result.dtype is torch.uint8 and result.dim() == 1 and rest:
        result[-rest:] = 255


_READ: list[torch.Tensor] = []


def _keeps_what_was_read(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Reading one element keeps the whole tensor, if it is large."""
    if on_device(args[0]) and args[0].untyped_storage().nbytes() >= 16 * MIB:
        _READ.append(args[0])
    return call(*args, **kwargs)


class _Neighbours:
    """Giving cached memory back takes the small block before a freed one with it."""

    def __init__(self) -> None:
        self._made: list[Any] = []

    def full(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = call(*args, **kwargs)
        if on_device(result) and result.nbytes <= MIB:
            self._made.append(weakref.ref(result))
        return result

    def empty_cache(self, old: Any) -> Any:
        def member(owner: Any) -> None:
            for left, right in zip(self._made, self._made[1:], strict=False):
                kept = left()
                if kept is not None and right() is None:
                    kept.fill_(0xEE)
            self._made = [one for one in self._made if one() is not None]
            old(owner)

        return member


def _without_index(old: Any) -> Any:
    def reset_max_memory_cached(self: Any, device_index: int | None = None) -> None:
        if device_index is not None:
            raise TypeError("device_index is not supported")
        old(self)

    return reset_max_memory_cached


_SLOTS, _NEIGHBOURS = _Slots(), _Neighbours()
VALUES = (
    memory("copies from the host end at 32 MiB", "last tile not computed", REUSE,
           "accelerator.memory.holds_values[33554433]", context=spoiled(_to_copy=result_of(_up_to_32_mib))),
    memory("the 65th small block is the first one again", "in-place aliasing", REUSE, "accelerator.memory.no_overlap",
           context=spoiled(full=_SLOTS.full)),
    memory("zeros() clears whole words", "in-place aliasing", REUSE, "accelerator.memory.zero_filled",
           context=spoiled(zeros=result_of(_bytes_left))),
    memory("a tensor that was read is never freed", STATISTICS, GROWTH, "accelerator.memory.freed",
           context=spoiled(_local_scalar_dense=_keeps_what_was_read)),
    memory("empty_cache takes the neighbour of a freed block", FREES, GROWTH,
           "accelerator.memory.empty_cache_keeps_values",
           context=together(spoiled(full=_NEIGHBOURS.full), accelerator(empty_cache=_NEIGHBOURS.empty_cache))),
    memory("reset_max_memory_cached takes no index", "unclean refusal", NUMBERS, "accelerator.memory.resets",
           context=accelerator(reset_max_memory_cached=_without_index)),
)  # fmt: skip


# --- numbers ------------------------------------------------------------------------------------------------------


class _PowersOfTwo:
    """Large blocks are counted as the next power of two."""

    def __init__(self) -> None:
        self._made: list[Any] = []

    def empty(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = call(*args, **kwargs)
        if on_device(result) and result.nbytes > 32 * MIB:
            self._made.append(weakref.ref(result))
        return result

    def allocated(self, old: Any) -> Any:
        def member(owner: Any, device_index: int | None = None) -> int:
            sizes = [one().nbytes for one in self._made if one() is not None]
            return int(old(owner, device_index)) + sum((1 << (size - 1).bit_length()) - size for size in sizes)

        return member


class _Originals:
    """Memory is no longer counted when the tensor it was made for is gone, though views use it."""

    def __init__(self) -> None:
        self._made: list[tuple[Any, StorageWeakRef, int]] = []

    def empty(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = call(*args, **kwargs)
        if on_device(result) and result.nbytes >= MIB:
            storage = result.untyped_storage()
            self._made.append((weakref.ref(result), StorageWeakRef(storage), storage.nbytes()))
        return result

    def allocated(self, old: Any) -> Any:
        def member(owner: Any, device_index: int | None = None) -> int:
            orphans = (size for tensor, storage, size in self._made if tensor() is None and not storage.expired())
            return max(0, int(old(owner, device_index)) - sum(orphans))

        return member


class _Raised:
    """Right after the cache was emptied more is reserved, until something is allocated."""

    def __init__(self) -> None:
        self._more = 0

    def empty_cache(self, old: Any) -> Any:
        def member(owner: Any) -> None:
            old(owner)
            self._more = 128 * MIB

        return member

    def reserved(self, old: Any) -> Any:
        return lambda owner, device_index=None: old(owner, device_index) + self._more

    def allocates(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._more = 0
        return call(*args, **kwargs)


def _shrinking(old: Any) -> Any:
    """Each question takes a page of the device for itself."""
    asked: list[int] = []

    def total_memory(self: Any, device_index: int | None = None) -> int:
        asked.append(1)
        return int(old(self, device_index)) - 4096 * len(asked)

    return total_memory


def _in_megabytes(old: Any) -> Any:
    """With an index the answer is in megabytes, and a fraction."""
    return lambda self, device_index=None: old(self) if device_index is None else old(self, device_index) / 1e6


def _of_current(old: Any) -> Any:
    return lambda self, device_index=None: old(self)


class _Polled:
    """The peak is the largest of what was seen when somebody asked, or made a tensor by a factory."""

    def __init__(self) -> None:
        self._peak = 0

    def contexts(self) -> AbstractContextManager[Any]:
        self._current = torch.sim.memory_allocated  # type: ignore[attr-defined]
        factories = dict.fromkeys(("empty", "full", "ones", "zeros", "_to_copy", "arange"), self._looks)
        members = {
            "max_memory_allocated": lambda old: lambda owner, device_index=None: self._look(),
            "reset_peak_memory_stats": self._resets,
            "memory_stats": self._stats,
        }
        return together(spoiled(**factories), accelerator(**members))()

    def _look(self) -> int:
        self._peak = max(self._peak, int(self._current()))
        return self._peak

    def _looks(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = call(*args, **kwargs)
        self._look()
        return result

    def _resets(self, old: Any) -> Any:
        def member(owner: Any, device_index: int | None = None) -> None:
            old(owner, device_index)
            self._peak = int(self._current())

        return member

    def _stats(self, old: Any) -> Any:
        return lambda owner, device_index=None: {
            **old(owner, device_index), "allocated_bytes.all.peak": self._look()
        }  # fmt: skip


def _of_freed_blocks() -> Mapping[str, Any]:
    """A peak that lies above what is allocated is told with 8 MiB of the cache around it."""

    def more(peak: int, current: int) -> int:
        return peak + 8 * MIB if peak > current else peak

    def stats(old: Any) -> Any:
        def member(self: Any, device_index: int | None = None) -> dict[str, int]:
            found: dict[str, int] = old(self, device_index)
            peak, current = (found[f"allocated_bytes.all.{which}"] for which in ("peak", "current"))
            return {**found, "allocated_bytes.all.peak": more(peak, current)}

        return member

    def peak(old: Any) -> Any:
        return lambda self, device_index=None: more(old(self, device_index), self.memory_allocated(device_index))

    return {"memory_stats": stats, "max_memory_allocated": peak}


_POWERS, _ORIGINALS, _RAISED, _POLLED = _PowersOfTwo(), _Originals(), _Raised(), _Polled()
PROFILED = ("profiling.memory.*", "capabilities.memory.*")
COUNTS = (
    memory("a number with an index is a fraction", STATISTICS, NUMBERS,
           "accelerator.memory.numbers[max_memory_reserved]", "accelerator.memory.numbers[max_memory_cached]",
           context=accelerator(max_memory_reserved=_in_megabytes)),
    memory("the peak of reserved memory leaves out what is allocated", STATISTICS, NUMBERS, "accelerator.memory.order",
           context=accelerator(max_memory_reserved=lambda old: lambda self, device_index=None:
                               old(self, device_index) - self.memory_allocated(device_index))),
    memory("blocks above 32 MiB count as powers of two", STATISTICS, NUMBERS,
           "accelerator.memory.allocated_follows[33554433]", *PROFILED,
           context=together(spoiled(empty=_POWERS.empty), accelerator(memory_allocated=_POWERS.allocated))),
    memory("memory that views alone use is not counted", STATISTICS, NUMBERS, "accelerator.memory.views_count_once",
           context=together(spoiled(empty=_ORIGINALS.empty), accelerator(memory_allocated=_ORIGINALS.allocated))),
    memory("right after empty_cache more is reserved", STATISTICS, GROWTH, "accelerator.memory.empty_cache_gives_back",
           context=together(
               spoiled(**dict.fromkeys(("empty", "full", "zeros", "ones", "_to_copy", "arange"), _RAISED.allocates)),
               accelerator(empty_cache=_RAISED.empty_cache, memory_reserved=_RAISED.reserved))),
    memory("total memory shrinks when it is asked for", STATISTICS, NUMBERS, "accelerator.memory.total",
           "capabilities.memory.total", context=accelerator(total_memory=_shrinking)),
    memory("allocated memory is the current device's", "memory statistics per process", NUMBERS,
           "accelerator.memory.per_device", context=accelerator(memory_allocated=_of_current)),
    memory("a peak counts the cache around it", STATISTICS, NUMBERS, "accelerator.memory.peak", *PROFILED,
           context=accelerator(**_of_freed_blocks())),
    memory("the peak does not see inside operations", STATISTICS, NUMBERS,
           "accelerator.memory.peak_inside_operations", *PROFILED, context=_POLLED.contexts),
)  # fmt: skip

MUTANTS = (*VALUES, *COUNTS)
