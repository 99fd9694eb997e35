"""Cases about counters: memory returns to its start, peaks are of one step, and throughput agrees with the clocks."""

from __future__ import annotations

import collections
import itertools
import time

import torch

from conformance.accelerators.capabilities import EVENT_TIMING, MEMORY_PEAK, MEMORY_STATS
from conformance.numerics.budgets import load_table
from conformance.plan.case import case
from conformance.suites.accelerator.conveyor import Conveyor, numbers, stale
from conformance.suites.accelerator.test_memory import GRANULARITY, MIB, settle
from conformance.suites.accelerator.timing import hold

from .training import steps_on_device

LIMITS = load_table(__file__, "limits.toml")
#: Runs of the conveyor between two readings of a throughput counter.
INTERVALS = 5


@case("monitor.memory.steady", requires=[MEMORY_STATS])
def test_memory_is_steady(accelerator, check, device):
    """Allocated memory does not grow with the logged steps, and is back at its start after training."""
    collections.deque(steps_on_device(device, steps=1), maxlen=0)  # one-time buffers of libraries do not count
    settle(accelerator)
    before, log = accelerator.memory_allocated(), []

    for step, _, loss, norm, used in steps_on_device(device, steps=12):
        log.append((step, loss.item(), norm.item(), used, accelerator.memory_allocated()))
    del loss, norm
    settle(accelerator)

    steady = [row[-1] for row in log[LIMITS["steps_until_steady"] :]]
    check.equal(max(steady), min(steady), f"the highest and the lowest of the logged bytes {steady}")
    check.that(steady[0] > before, f"{before} bytes before training, and {steady[0]} during it")
    check.equal(accelerator.memory_allocated(), before, "allocated bytes after training")
    check.that(all(loss > 0 for _, loss, *_ in log), f"losses are {[loss for _, loss, *_ in log]}")


@case("monitor.memory.peak_of_a_step", requires=[MEMORY_PEAK])
def test_peak_of_a_step(accelerator, check, device):
    """With a reset before each step, the peak is that of the step, also after a larger one."""
    settle(accelerator)
    before, sizes, peaks = accelerator.memory_allocated(), (4, 32, 8, 16, 4), []

    for size in sizes:
        accelerator.reset_peak_memory_stats()
        ones = torch.ones(size * MIB // 4, device=device)
        check.equal((ones * 2)[-1].item(), 2.0, f"twice one, in {size} MiB")
        del ones
        peaks.append(accelerator.max_memory_allocated() - before)

    for size, peak in zip(sizes, peaks, strict=True):
        least = 2 * size * MIB  # the ones and their double
        check.that(least <= peak <= least + 2 * GRANULARITY, f"a step of {least} bytes has a peak of {peak}: {peaks}")


@case("monitor.throughput.events", requires=[EVENT_TIMING])
def test_throughput_by_events(accelerator, check, device):
    """Times between neighbouring events add up to the time from the first to the last, within the host's time."""
    conveyor, source = Conveyor(accelerator, device), numbers(device)
    target = torch.empty_like(source)

    def compare():
        events = [accelerator.Event(enable_timing=True) for _ in range(INTERVALS + 1)]
        accelerator.synchronize()
        started = time.perf_counter()
        events[0].record()
        for event in events[1:]:
            conveyor.carry(source, target)
            event.record()
        accelerator.synchronize()
        wall = 1000 * (time.perf_counter() - started)
        parts = [first.elapsed_time(second) for first, second in itertools.pairwise(events)]
        whole = events[0].elapsed_time(events[-1])

        wrong = stale(target)
        assert wrong == 0, f"{wrong} elements are wrong after the work that was timed"
        assert min(parts) > 0, f"intervals in milliseconds: {parts}"
        share = abs(sum(parts) - whole) / whole
        assert share <= LIMITS["interval_share"], f"intervals of {parts} ms add up to {sum(parts)}, not to {whole}"
        assert whole <= wall * (1 + LIMITS["interval_share"]), f"{whole} ms by events, {wall} ms by the host's clock"

    hold(compare)
    check.that(True, "the intervals add up")
