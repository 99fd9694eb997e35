"""Memory counters of an accelerator. All numbers are bytes, as ints."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import Any, Protocol

from conformance.accelerators import members
from conformance.accelerators.interface import MissingMember


class Memory(Protocol):
    """Counters of one device. ``module`` is ``torch.<name>``; callers pass existing indices only."""

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
    """Counters of the caching allocator behind ``torch.<name>``, or of ``torch.accelerator`` where the module has none.

    ``total_in_stats`` is the key of the device's size in ``memory_stats()``, for modules that give it only there.
    """

    def __init__(self, total_in_stats: str = "") -> None:
        self._total_in_stats = total_in_stats

    def allocated(self, module: Any, index: int) -> int:
        return int(_answer(module, "memory_allocated", index))

    def peak_allocated(self, module: Any, index: int) -> int:
        return int(_answer(module, "max_memory_allocated", index))

    def reserved(self, module: Any, index: int) -> int:
        return int(_answer(module, "memory_reserved", index))

    def peak_reserved(self, module: Any, index: int) -> int:
        return int(_answer(module, "max_memory_reserved", index))

    def reset_peaks(self, module: Any, index: int) -> None:
        _call(module, "reset_peak_memory_stats", index)

    def stats(self, module: Any, index: int) -> dict[str, int]:
        return dict(_answer(module, "memory_stats", index))

    def total(self, module: Any, index: int) -> int:
        """Return the device's memory in bytes, from the first source that the module has."""
        if self._total_in_stats:
            return self.stats(module, index)[self._total_in_stats]

        def by_info() -> int:
            return int(_memory_info(module, index)[1])

        properties = members.call(module, "get_device_properties", index, instead=lambda: None)
        told = getattr(properties, "total_memory", None)
        return by_info() if told is None else int(told)

    def available(self, module: Any, index: int) -> int:
        """Return the device's free bytes plus the bytes that this process has reserved and does not use."""
        try:
            idle = self.reserved(module, index) - self.allocated(module, index)
        except NotImplementedError:
            idle = 0  # where nobody counts what is reserved, none of it is known to be idle
        try:
            free = int(_memory_info(module, index)[0])
        except NotImplementedError:
            # Other processes' memory is unknown here; only this process' share can be subtracted.
            free = self.total(module, index) - self.reserved(module, index)
        return min(free + idle, self.total(module, index))

    def empty_cache(self, module: Any) -> None:
        _call(module, "empty_cache")


def _answer(module: Any, name: str, *arguments: Any) -> Any:
    """Return the answer of ``name`` of the module, its ``memory``, or ``torch.accelerator``, in this order."""
    general = functools.partial(_generally, module, name, name, *arguments)
    return members.answer(module, name, *arguments, homes=(getattr(module, "memory", None),), instead=general)


def _call(module: Any, name: str, *arguments: Any) -> None:
    """Call ``name`` of the module, its ``memory``, or ``torch.accelerator``, in this order."""
    general = functools.partial(_generally, module, name, name, *arguments)
    members.call(module, name, *arguments, homes=(getattr(module, "memory", None),), instead=general)


#: What a vendor can write for a device that counts no bytes.
_ANOTHER_WAY = "memory=ProcessMemory() in a declaration counts the process's bytes"


def _generally(module: Any, name: str, general: str, *arguments: Any) -> Any:
    """Call a function of ``torch.accelerator``. It fails if the device's allocator is none of torch's kind.

    PyTorch words that failure as an internal error of its own, although the device never offered this function.
    """
    import torch

    function = getattr(torch.accelerator, general, None) if hasattr(torch, "accelerator") else None
    lacking = module.__name__
    if function is None:
        said = f"neither {lacking} nor torch.accelerator has {name}()"
        raise MissingMember(name, lacking, f"{said}; {_ANOTHER_WAY}")
    try:
        return function(*arguments)
    except RuntimeError as error:
        why = str(error).splitlines()[0]
        said = f"{lacking} has no {name}(), and torch.accelerator's fails: {why}; {_ANOTHER_WAY}"
        raise MissingMember(name, lacking, said) from error


def _memory_info(module: Any, index: int) -> tuple[int, int]:
    """Return the free and the total memory of a device in bytes."""
    general = functools.partial(_generally, module, "mem_get_info", "get_memory_info", index)
    free, total = members.answer(module, "mem_get_info", index, instead=general)
    return free, total


class DriverMemory:
    """Counters of a driver that gives the current allocation and keeps no peaks (``torch.mps``)."""

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
        """Do nothing: the driver keeps no peak."""

    def stats(self, module: Any, index: int) -> dict[str, int]:
        return {}

    def total(self, module: Any, index: int) -> int:
        return int(getattr(module, self._total)())

    def available(self, module: Any, index: int) -> int:
        return max(0, self.total(module, index) - self.allocated(module, index))

    def empty_cache(self, module: Any) -> None:
        module.empty_cache()


class ProcessMemory:
    """Memory of the host. PyTorch's CPU allocator counts nothing, so the numbers are this process' resident memory.

    Linux keeps the peak and resets it on demand (``VmHWM``, ``/proc/self/clear_refs``, see proc(5)). Its counters lag
    by some hundred KiB: precise enough as information, and too coarse for a claim.
    """

    def allocated(self, module: Any, index: int) -> int:
        return _resident()

    def peak_allocated(self, module: Any, index: int) -> int:
        # The kernel's peak can lag behind the current value.
        return max(_peak_resident(), _resident())

    def reserved(self, module: Any, index: int) -> int:
        return _resident()

    def peak_reserved(self, module: Any, index: int) -> int:
        return self.peak_allocated(module, index)

    def reset_peaks(self, module: Any, index: int) -> None:
        reset = Path("/proc/self/clear_refs")
        if reset.exists() and os.access(reset, os.W_OK):
            reset.write_text("5")  # 5 resets VmHWM to the current resident memory

    def stats(self, module: Any, index: int) -> dict[str, int]:
        return {}

    def total(self, module: Any, index: int) -> int:
        # A container's limit can be smaller than the machine's memory.
        return min([_page_count("SC_PHYS_PAGES"), *_control_group("memory.max")])

    def available(self, module: Any, index: int) -> int:
        limit, used = _control_group("memory.max"), _control_group("memory.current")
        room = [max(0, limit[0] - used[0])] if limit and used else []
        return min([_available_on_the_machine(), *room])

    def empty_cache(self, module: Any) -> None:
        """Do nothing: the CPU allocator has no cache."""


def _resident() -> int:
    """Return this process's resident memory in bytes, from psutil if it is installed."""
    try:
        import psutil
    except ImportError:
        # Without psutil and without /proc, as on macOS, only the peak is known.
        return _status("VmRSS") or _peak_by_resource()
    return int(psutil.Process().memory_info().rss)


def _peak_resident() -> int:
    return _status("VmHWM") or _peak_by_resource()


def _status(key: str) -> int:
    """Return a number of ``/proc/self/status`` in bytes, or 0 without such a file."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return 0
    values = [line.split()[1] for line in lines if line.startswith(f"{key}:")]
    return int(values[0]) * 1024 if values else 0


def _peak_by_resource() -> int:
    """Return the highest resident memory of this process in bytes."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, other systems KiB


def _available_on_the_machine() -> int:
    """Return the memory of the host that is free for new processes, in bytes."""
    try:
        import psutil
    except ImportError:
        return _page_count("SC_AVPHYS_PAGES")
    return int(psutil.virtual_memory().available)


def _page_count(name: str) -> int:
    return os.sysconf(name) * os.sysconf("SC_PAGE_SIZE")


def _control_group(name: str) -> list[int]:
    """Return a limit or counter of this process' control group (version 2) in bytes, or an empty list."""
    try:
        text = (Path("/sys/fs/cgroup") / name).read_text().strip()
    except OSError:
        return []
    return [int(text)] if text.isdigit() else []
