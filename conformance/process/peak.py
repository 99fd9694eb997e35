"""Peak memory of this process, and the case that made it."""

from __future__ import annotations

import sys
from collections.abc import Iterable

#: Name under which a worker sends its peak to the controller when it ends.
OUTPUT = "conformance.peak"
#: Bytes of a unit of ``ru_maxrss``: macOS counts bytes, other systems KiB.
_UNIT = 1 if sys.platform == "darwin" else 1024


class PeakMemory:
    """Largest resident memory of this process. ``note`` it after each case; ``case`` is the one that raised it last."""

    def __init__(self) -> None:
        self.bytes, self.case = peak_bytes(), ""

    def note(self, case_id: str) -> None:
        """Look whether the peak has risen while the case ran."""
        now = peak_bytes()
        if now > self.bytes:
            self.bytes, self.case = now, case_id


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
