"""Peak memory of this process, and the case that made it. Freed memory goes back to the system before it piles up."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable
from pathlib import Path

#: Name under which a worker sends its peak to the controller when it ends.
OUTPUT = "conformance.peak"
#: Bytes of a unit of ``ru_maxrss``: macOS counts bytes, other systems KiB.
_UNIT = 1 if sys.platform == "darwin" else 1024
#: Resident bytes from which freed memory is given back, and by how much they have to grow until the next time. The heap
#: of glibc keeps what is freed below memory in use: after some hundred operators half of a worker's memory.
_GIVE_BACK_FROM, _GIVE_BACK_EACH = 600 * 2**20, 25 * 2**20


class PeakMemory:
    """Largest resident memory of this process. ``note`` it after each case; ``case`` is the one that raised it last."""

    def __init__(self) -> None:
        self.bytes, self.case = peak_bytes(), ""

    def note(self, case_id: str) -> None:
        """Look whether the peak has risen while the case ran."""
        now = peak_bytes()
        if now > self.bytes:
            self.bytes, self.case = now, case_id


class FreedMemory:
    """Freed memory that the heap of this process keeps. ``give_back`` it to the system after each case."""

    def __init__(self, start: int = _GIVE_BACK_FROM, each: int = _GIVE_BACK_EACH) -> None:
        self._start, self._each, self._next = start, each, start
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None

    def give_back(self) -> bool:
        """Give it back if this process has become large. Return whether it did; only glibc can."""
        if self._trim is None or resident_bytes() < self._next:
            return False
        self._trim(0)
        self._next = max(self._start, resident_bytes() + self._each)
        return True


def peak_line(peaks: Iterable[tuple[int, str]]) -> str:
    """Return the line about the largest of some peaks, in bytes with the case that made it; nothing without any."""
    largest, case = max(peaks, default=(0, ""))
    where = f", in {case}" if case else ", before the first case"
    return f"peak memory of a worker: {largest / 2**20:,.0f} MiB{where}" if largest else ""


def peak_bytes() -> int:
    """Return the largest resident memory that this process has had, in bytes; 0 where the system does not tell."""
    try:
        import resource  # not on Windows
    except ImportError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes; 0 where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_bytes().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
