"""Where an accelerator's memory numbers come from. All of them are bytes, as ints."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Protocol


class Memory(Protocol):
    """Counters of one device. ``module`` is ``torch.<name>``; every index is one that exists."""

    def allocated(self, module: Any, index: int) -> int: ...
    def peak_allocated(self, module: Any, index: int) -> int: ...
    def reserved(self, module: Any, index: int) -> int: ...
    def peak_reserved(self, module: Any, index: int) -> int: ...
    def reset_peaks(self, module: Any, index: int) -> None: ...
    def stats(self, module: Any, index: int) -> dict[str, int]: ...
    def total(self, module: Any, index: int) -> int: ...
    def available(self, module: Any, index: int) -> int: ...
    def empty_cache(self, module: Any) -> None: ...


class AllocatorMemory:
    """The caching allocator behind ``torch.<name>``; what the module lacks, ``torch.accelerator`` may have.

    ``total_in_stats`` is the key of the device's size in ``memory_stats()``, for modules that tell it only there.
    """

    def __init__(self, total_in_stats: str = "") -> None:
        self._total_in_stats = total_in_stats

    def allocated(self, module: Any, index: int) -> int:
        return int(_function(module, "memory_allocated")(index))

    def peak_allocated(self, module: Any, index: int) -> int:
        return int(_function(module, "max_memory_allocated")(index))

    def reserved(self, module: Any, index: int) -> int:
        return int(_function(module, "memory_reserved")(index))

    def peak_reserved(self, module: Any, index: int) -> int:
        return int(_function(module, "max_memory_reserved")(index))

    def reset_peaks(self, module: Any, index: int) -> None:
        _function(module, "reset_peak_memory_stats")(index)

    def stats(self, module: Any, index: int) -> dict[str, int]:
        return dict(_function(module, "memory_stats")(index))

    def total(self, module: Any, index: int) -> int:
        if self._total_in_stats:
            return self.stats(module, index)[self._total_in_stats]
        if hasattr(module, "get_device_properties"):
            return int(module.get_device_properties(index).total_memory)
        return int(_memory_info(module, index)[1])

    def available(self, module: Any, index: int) -> int:
        """What the device has free, plus what this process has reserved and not used."""
        idle = self.reserved(module, index) - self.allocated(module, index)
        try:
            free = int(_memory_info(module, index)[0])
        except NotImplementedError:
            # Without a view of the whole device only this process' share is known.
            free = self.total(module, index) - self.reserved(module, index)
        return min(free + idle, self.total(module, index))

    def empty_cache(self, module: Any) -> None:
        _function(module, "empty_cache")()


def _function(module: Any, name: str) -> Any:
    import torch

    for home in (module, getattr(module, "memory", None), getattr(torch, "accelerator", None)):
        if hasattr(home, name):
            return getattr(home, name)
    raise NotImplementedError(f"neither {module.__name__} nor torch.accelerator has {name}()")


def _memory_info(module: Any, index: int) -> tuple[int, int]:
    if hasattr(module, "mem_get_info"):
        free, total = module.mem_get_info(index)
    else:
        free, total = _function(module, "get_memory_info")(index)
    return free, total


class DriverMemory:
    """A device that tells what is allocated now, and keeps no peaks (``torch.mps``)."""

    def __init__(self, allocated: str, reserved: str, total: str) -> None:
        self._allocated, self._reserved, self._total = allocated, reserved, total

    def allocated(self, module: Any, index: int) -> int:
        return int(getattr(module, self._allocated)())

    def peak_allocated(self, module: Any, index: int) -> int:
        return self.allocated(module, index)

    def reserved(self, module: Any, index: int) -> int:
        return int(getattr(module, self._reserved)())

    def peak_reserved(self, module: Any, index: int) -> int:
        return self.reserved(module, index)

    def reset_peaks(self, module: Any, index: int) -> None:
        """There is no peak to reset."""

    def stats(self, module: Any, index: int) -> dict[str, int]:
        return {}

    def total(self, module: Any, index: int) -> int:
        return int(getattr(module, self._total)())

    def available(self, module: Any, index: int) -> int:
        return max(0, self.total(module, index) - self.allocated(module, index))

    def empty_cache(self, module: Any) -> None:
        module.empty_cache()


class ProcessMemory:
    """The host: PyTorch's CPU allocator counts nothing, so the numbers are this process' resident memory.

    The kernel keeps the peak and resets it on demand (``VmHWM``, ``/proc/self/clear_refs``, see proc(5)), and its
    counters run some hundred KiB behind. That is good enough to look at, and too coarse to be claimed.
    """

    def allocated(self, module: Any, index: int) -> int:
        return _resident()

    def peak_allocated(self, module: Any, index: int) -> int:
        return max(_peak_resident(), _resident())

    def reserved(self, module: Any, index: int) -> int:
        return _resident()

    def peak_reserved(self, module: Any, index: int) -> int:
        return self.peak_allocated(module, index)

    def reset_peaks(self, module: Any, index: int) -> None:
        reset = Path("/proc/self/clear_refs")
        if reset.exists() and os.access(reset, os.W_OK):
            reset.write_text("5")

    def stats(self, module: Any, index: int) -> dict[str, int]:
        return {}

    def total(self, module: Any, index: int) -> int:
        return min([_page_count("SC_PHYS_PAGES"), *_control_group("memory.max")])

    def available(self, module: Any, index: int) -> int:
        limit, used = _control_group("memory.max"), _control_group("memory.current")
        room = [max(0, limit[0] - used[0])] if limit and used else []
        return min([_available_on_the_machine(), *room])

    def empty_cache(self, module: Any) -> None:
        """The CPU allocator caches nothing."""


def _resident() -> int:
    try:
        import psutil
    except ImportError:
        return _status("VmRSS") or _peak_by_resource()
    return int(psutil.Process().memory_info().rss)


def _peak_resident() -> int:
    return _status("VmHWM") or _peak_by_resource()


def _status(key: str) -> int:
    """A number of ``/proc/self/status`` in bytes; 0 where there is no such file."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return 0
    values = [line.split()[1] for line in lines if line.startswith(f"{key}:")]
    return int(values[0]) * 1024 if values else 0


def _peak_by_resource() -> int:
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, the others KiB


def _available_on_the_machine() -> int:
    try:
        import psutil
    except ImportError:
        return _page_count("SC_AVPHYS_PAGES")
    return int(psutil.virtual_memory().available)


def _page_count(name: str) -> int:
    return os.sysconf(name) * os.sysconf("SC_PAGE_SIZE")


def _control_group(name: str) -> list[int]:
    """A limit or counter of this process' control group (version 2) in bytes; nothing if there is none."""
    try:
        text = (Path("/sys/fs/cgroup") / name).read_text().strip()
    except OSError:
        return []
    return [int(text)] if text.isdigit() else []
