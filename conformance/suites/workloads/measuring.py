"""What a training run costs: throughput, step times, peak memory, and memory that does not come back."""

from __future__ import annotations

import gc
import resource
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from conformance.accelerators.capabilities import MEMORY_PEAK, MEMORY_STATS

from .bounds import learned

#: Steps at the start whose times hold compilation, allocation and cold caches.
COLD_STEPS = 4


class Memory:
    """The accelerator's own counters, where it declares them; silent where it does not."""

    def __init__(self, accelerator: Any, declaration: Any) -> None:
        self.accelerator = accelerator
        self.counts = declaration.supports(MEMORY_STATS.cell)
        self.peaks = declaration.supports(MEMORY_PEAK.cell)
        self._before = 0

    def begin(self) -> None:
        """From here on allocations count."""
        if self.counts:
            self._before = self._allocated()
        if self.peaks:
            self.accelerator.reset_peak_memory_stats()

    def check_returned(self, check: Any) -> None:
        """Everything allocated since ``begin`` is free again."""
        if not self.counts:
            return
        kept = self._allocated() - self._before
        check.that(kept <= learned("memory", "left_over"), f"{kept} bytes stay allocated after the run")

    def report_peak(self, check: Any) -> None:
        """The allocator's peak where it is declared; otherwise that of the whole process, under a name that says so."""
        if self.peaks:
            check.metric("peak_memory_bytes", int(self.accelerator.max_memory_allocated()))
        else:
            check.metric("process_peak_bytes", process_peak_bytes())

    def _allocated(self) -> int:
        gc.collect()
        self.accelerator.synchronize()
        return int(self.accelerator.memory_allocated())


def process_peak_bytes() -> int:
    """The largest resident memory of this process so far: ``ru_maxrss``, in KiB on Linux and in bytes on macOS."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def report_speed(check: Any, seconds: Sequence[float], items_per_step: int, unit: str) -> None:
    """Throughput and step times of the warm steps."""
    warm = seconds[COLD_STEPS:]
    check.metric(f"{unit}_per_s", items_per_step * len(warm) / sum(warm))
    check.metric("step_ms_median", statistics.median(warm) * 1e3)
    check.metric("step_ms_p90", statistics.quantiles(warm, n=10)[-1] * 1e3)
