"""Measurements of a training run: throughput, step times, peak memory, and memory that is not freed."""

from __future__ import annotations

import functools
import gc
import math
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch

from conformance.accelerators.capabilities import MEMORY_PEAK, MEMORY_STATS

from .comparing import learned
from .inputs import Kind
from .loop import RunDevice, Trajectory

#: Steps at the start that are not counted: they include compilation, allocation and cold caches.
COLD_STEPS = 4
#: Rows of the matrices by which the rate of a device is measured, and how many products are timed.
_SIDE, _PRODUCTS = 512, 5


class MemoryCounters:
    """Memory counters of the accelerator, as far as it declares them; without them nothing is checked."""

    def __init__(self, accelerator: Any, declaration: Any) -> None:
        self.accelerator = accelerator
        self.counts = declaration.supports(MEMORY_STATS.cell)
        self.peaks = declaration.supports(MEMORY_PEAK.cell)
        self._before = 0

    def begin(self) -> None:
        """Start to count allocations, and reset the peak."""
        if self.counts:
            self._before = self._allocated()
        if self.peaks:
            self.accelerator.reset_peak_memory_stats()

    def check_returned(self, check: Any) -> None:
        """Check that all memory allocated since ``begin`` is free again."""
        if not self.counts:
            return
        kept = self._allocated() - self._before
        allowed = learned("memory", "left_over")
        check.that(kept <= allowed, f"{kept} bytes stay allocated after the run, allowed {allowed}")

    def report_peak(self, check: Any) -> None:
        """Report the allocator's peak if it is declared, otherwise the peak of the whole process under another name."""
        if self.peaks:
            check.metric("peak_memory_bytes", int(self.accelerator.max_memory_allocated()))
        else:
            check.metric("process_peak_bytes", process_peak_bytes())

    def _allocated(self) -> int:
        gc.collect()  # reference cycles keep tensors alive
        self.accelerator.synchronize()
        return int(self.accelerator.memory_allocated())


def process_peak_bytes() -> int:
    """Return the largest resident memory of this process so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # ru_maxrss is in KiB on Linux and in bytes on macOS.
    return peak if sys.platform == "darwin" else peak * 1024


def report_speed(check: Any, warm: Sequence[float], items_per_step: int, unit: str) -> None:
    """Report throughput and step times (median and 90th percentile, in milliseconds) of warm steps."""
    check.metric(f"{unit}_per_s", items_per_step * len(warm) / sum(warm))
    check.metric("step_ms_median", statistics.median(warm) * 1e3)
    check.metric("step_ms_p90", statistics.quantiles(warm, n=10, method="inclusive")[-1] * 1e3)


def report_family_speed(check: Any, run: Trajectory, kind: Kind, flops: int, rate: float) -> None:
    """Report throughput, step times, the noise floor of warm steps, and the share of the device's matrix-product rate.

    The noise floor is the difference of the medians of two halves of the run. ``flops`` is the number of operations of
    a step in products, and ``rate`` what the device does of them in a second.
    """
    warm = run.seconds
    report_speed(check, warm, kind.items, kind.unit)
    halves = [statistics.median(warm[start::2]) for start in (0, 1)]
    check.metric("noise_floor", abs(halves[0] - halves[1]) / min(halves))
    check.metric("matmul_share", flops / statistics.median(warm) / rate)


@functools.cache
def matmul_rate(run_device: RunDevice, dtype: torch.dtype) -> float:
    """Return the operations per second of the best of some products of square matrices on the device."""
    left, right = (torch.ones(_SIDE, _SIDE, dtype=dtype, device=run_device.device) for _ in range(2))
    best = math.inf
    for _ in range(_PRODUCTS):
        run_device.synchronize()
        started = time.perf_counter()
        left @ right
        run_device.synchronize()
        best = min(best, time.perf_counter() - started)
    return 2 * _SIDE**3 / best
