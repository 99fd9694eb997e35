"""Cases of torch.profiler, operation counts, times, memory numbers and running out of memory."""

from __future__ import annotations

import contextlib
import itertools
import math
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import profiler
from torch.utils.flop_counter import FlopCounterMode

from conformance.accelerators.capabilities import (
    DTYPE,
    EVENT_TIMING,
    MEMORY,
    MEMORY_OOM,
    MEMORY_STATS,
    PROFILER,
    RANGES,
)
from conformance.judging.finding import environment_lacks
from conformance.plan.case import About, Level, case
from conformance.suites.accelerator.conveyor import Conveyor, numbers, stale
from conformance.suites.accelerator.test_memory import settle
from conformance.suites.accelerator.timing import hold
from conformance.suites.shared_bodies import assert_survives_running_out, runs_out, still_computes

MIB = 1 << 20


def record(accelerator: Any, function: Callable[[], object]) -> dict[str, Any]:
    """Run the function under the profiler and return its averaged events by name."""
    # A first run outside the profiler does one-time work, such as loading kernels.
    function()
    accelerator.synchronize()
    with warnings.catch_warnings():
        # Device profilers warn about events that they do not count; the cases look at what is recorded.
        warnings.simplefilter("ignore")
        with profiler.profile(activities=profiler.supported_activities()) as profile:
            function()
            accelerator.synchronize()
        return {event.key: event for event in profile.key_averages()}


def device_microseconds(events: dict[str, Any]) -> float:
    """Return the time on the device in microseconds that the profiler attributes to operations and kernels."""
    return sum(float(getattr(event, "self_device_time_total", 0.0)) for event in events.values())


@case("profiling.profiler.operations", requires=[PROFILER])
def test_operations(accelerator, device):
    """The profiler counts every run of each operation."""
    left = torch.ones(129, 129, device=device)

    def work():
        for _ in range(7):
            product = torch.mm(left, left)
        assert product[0, 0].item() == 129, f"a product of ones is {product[0, 0].item()}, not 129"
        return left + 1

    events = record(accelerator, work)

    counts = {name: events[name].count if name in events else 0 for name in ("aten::mm", "aten::add")}
    assert counts == {"aten::mm": 7, "aten::add": 1}, f"7 products and 1 sum ran; the profiler recorded {counts}"


@case("profiling.profiler.device_time", requires=[PROFILER])
def test_device_time(accelerator, device):
    """The profiler records device time for work, and more time for more work."""
    conveyor, source = Conveyor(accelerator, device, milliseconds=5.0), numbers(device)
    target = torch.empty_like(source)

    def microseconds(times):
        events = record(accelerator, lambda: conveyor.carry(source, target, times))
        assert stale(target) == 0, f"{stale(target)} elements are wrong after the work that was recorded"
        if device.type != "cpu":
            return device_microseconds(events)
        # Where the host is the device, its time is host time.
        return sum(event.self_cpu_time_total for event in events.values())

    def check_scaling():
        short, long = (min(microseconds(times) for _ in range(3)) for times in (1, 8))
        assert short > 0, "the profiler recorded no time on the device"
        assert long > short, f"the profiler recorded {long:.0f} µs for 8 × the work, {short:.0f} µs for 1 ×"

    hold(check_scaling)


@case("profiling.profiler.ranges", requires=[PROFILER, RANGES])
def test_profiler_ranges(accelerator, device):
    """The profiler records the operations inside ranges."""
    doubled = []

    def work():
        accelerator.range_push("outer")
        doubled.append(torch.ones(65, device=device).mul(2))
        accelerator.range_pop()

    events = record(accelerator, work)

    assert doubled[-1].cpu().tolist() == [2.0] * 65, f"inside a range twice 1 is {doubled[-1].cpu().tolist()}"
    assert "aten::mul" in events, f"inside a range the profiler recorded only {sorted(events)}"


#: Operations and their numbers of floating-point operations: two for each multiplication with its addition.
FLOPS = {
    "mm": (lambda d: torch.ones(17, 31, device=d) @ torch.ones(31, 13, device=d), 2 * 17 * 31 * 13),
    "bmm": (lambda d: torch.ones(3, 17, 31, device=d) @ torch.ones(3, 31, 13, device=d), 3 * 2 * 17 * 31 * 13),
    "linear": (
        lambda d: torch.nn.functional.linear(torch.ones(9, 31, device=d), torch.ones(13, 31, device=d)),
        2 * 9 * 31 * 13,
    ),
    "addmm": (
        lambda d: torch.addmm(torch.ones(13, device=d), torch.ones(9, 31, device=d), torch.ones(31, 13, device=d)),
        2 * 9 * 31 * 13,
    ),
    "conv2d": (
        lambda d: torch.nn.functional.conv2d(torch.ones(2, 3, 16, 16, device=d), torch.ones(5, 3, 3, 3, device=d)),
        2 * 2 * 5 * 14 * 14 * 3 * 3 * 3,
    ),
    "elementwise": (lambda d: torch.ones(65, device=d) + 1, 0),
}


@case(
    "profiling.flops.forward", about=About.PYTORCH, requires=[MEMORY], level=Level.CORE, axes={"function": list(FLOPS)}
)
def test_flops_forward(device, function):
    """The FLOP counter gives exactly the formula's count on the device."""
    work, expected = FLOPS[function]

    with FlopCounterMode(display=False) as counter:
        work(device)

    found = counter.get_total_flops()
    assert found == expected, f"the counter gives {found} operations for {function}, the formula {expected}"


@case("profiling.flops.backward", about=About.PYTORCH, requires=[MEMORY], level=Level.CORE)
def test_flops_backward(device):
    """A backward pass with two gradients counts twice the operations of its forward pass."""
    left = torch.ones(17, 31, device=device, requires_grad=True)
    right = torch.ones(31, 13, device=device, requires_grad=True)

    with FlopCounterMode(display=False) as counter:
        (left @ right).sum().backward()

    found, expected = counter.get_total_flops(), 3 * 2 * 17 * 31 * 13
    assert found == expected, f"the counter gives {found} operations for forward and backward, the formula {expected}"


@case(
    "profiling.flops.dtypes", about=About.PYTORCH, requires=[DTYPE], axes={"dtype": ["float32", "float16", "bfloat16"]}
)
def test_flops_dtypes(device, dtype):
    """The FLOP count does not depend on the dtype."""
    left = torch.ones(17, 31, device=device, dtype=getattr(torch, dtype))

    with FlopCounterMode(display=False) as counter:
        left @ left.t()

    found, expected = counter.get_total_flops(), 2 * 17 * 31 * 17
    assert found == expected, f"the counter gives {found} operations for {dtype}, the formula {expected}"


@case("profiling.time.event_within_wall", requires=[EVENT_TIMING])
def test_event_within_wall(accelerator, device):
    """Event times are at most the wall time, and at least a twentieth of it in the best of several tries."""
    # A loaded host makes the wall time longer, often by ten times where many processes share it, but never shorter. A
    # wrong unit is off by a factor of 1000. So the lower bound is loose, and one try is enough.
    conveyor, source = Conveyor(accelerator, device, milliseconds=50.0), numbers(device)
    hold(lambda: check_event_times(accelerator, conveyor, source))


def check_event_times(accelerator, conveyor, source):
    """Compare the times of events with the wall time of three chains."""
    target, shares = torch.empty_like(source), []
    for _ in range(3):
        start, end = accelerator.Event(enable_timing=True), accelerator.Event(enable_timing=True)
        accelerator.synchronize()
        started = time.perf_counter()
        start.record()
        conveyor.carry(source, target)
        end.record()
        accelerator.synchronize()
        wall = (time.perf_counter() - started) * 1000
        shares.append(start.elapsed_time(end) / wall)

    # The two clocks themselves may differ by 5 %.
    assert max(shares) <= 1.05, f"elapsed_time() gives {max(shares):.2f} × the wall time; at most 1.05 is allowed"
    assert max(shares) >= 0.05, (
        f"elapsed_time() gives at most {max(shares):.4f} of the wall time; check that it returns milliseconds"
    )


@case("profiling.time.work_scales", requires=[MEMORY], level=Level.CORE)
def test_work_scales(accelerator, device):
    """Sixteen times the work takes longer by the host's clock with synchronize() before and after it."""
    conveyor, source = Conveyor(accelerator, device), numbers(device)

    def check_scaling():
        short, long = conveyor.seconds(source, 1), conveyor.seconds(source, 16)
        assert long > short, f"16 × the work takes {long * 1e3:.2f} ms, 1 × takes {short * 1e3:.2f} ms"

    hold(check_scaling)


@case("profiling.memory.finite", requires=[MEMORY], level=Level.CORE)
def test_memory_finite(accelerator, device):
    """Memory numbers are finite and not negative while tensors are alive."""
    kept = [torch.ones(MIB, device=device) for _ in range(4)]
    members = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "available_memory")

    values = {member: getattr(accelerator, member)() for member in members}

    assert [tensor.sum().item() for tensor in kept] == [MIB] * 4, "tensors of ones do not add up to their sizes"
    bad = {member: value for member, value in values.items() if not math.isfinite(value) or value < 0}
    assert not bad, f"memory numbers are negative or not finite: {bad}"


@case("profiling.memory.monotone", requires=[MEMORY_STATS])
def test_memory_monotone(accelerator, device):
    """Each new tensor raises allocated memory, and each freed tensor lowers it."""
    settle(accelerator)  # garbage of an earlier case that is freed meanwhile would lower the numbers
    kept, values = [], [accelerator.memory_allocated()]

    for _ in range(6):
        kept.append(torch.ones(MIB, device=device))
        values.append(accelerator.memory_allocated())
    for _ in range(6):
        kept.pop()
        values.append(accelerator.memory_allocated())

    rising, falling = values[:7], values[6:]
    # A tensor has 2^20 floats of 4 bytes.
    assert all(b - a >= 4 * MIB for a, b in itertools.pairwise(rising)), (
        f"memory_allocated() while allocating tensors of 4 MiB: {rising}"
    )
    assert all(a - b >= 4 * MIB for a, b in itertools.pairwise(falling)), (
        f"memory_allocated() while freeing tensors of 4 MiB: {falling}"
    )


@case("profiling.oom.single", requires=[MEMORY_OOM])
def test_oom_single(accelerator, device):
    """A tensor larger than the device raises torch.OutOfMemoryError, and the device and live tensors are unharmed."""
    with no_other_error():
        assert_survives_running_out(device, accelerator.total_memory() + 64 * MIB)


@case("profiling.oom.filled", requires=[MEMORY_OOM, MEMORY_STATS])
def test_oom_filled(accelerator, device):
    """Filling the device with tensors raises torch.OutOfMemoryError, and freeing them returns all memory."""
    settle(accelerator)
    before, size = accelerator.memory_allocated(), accelerator.total_memory() // 8
    kept = []

    def fill():
        for _ in range(10):
            kept.append(torch.empty(size, dtype=torch.uint8, device=device))

    with no_other_error():
        message = f"10/8 of total_memory() were allocated without an error: {len(kept)} tensors of {size} bytes"
        assert runs_out(fill), message
    kept.clear()
    accelerator.empty_cache()

    left = accelerator.memory_allocated() - before
    assert left <= 0, f"{left} bytes stay allocated after running out of memory"
    with no_other_error():
        out = runs_out(lambda: torch.empty(size, dtype=torch.uint8, device=device))
    assert not out, f"a tensor of {size} bytes does not fit any more after all others were freed"


@case("profiling.oom.inside_operation", requires=[MEMORY_OOM])
def test_oom_inside_operation(accelerator, device):
    """An operation whose result needs too much memory raises torch.OutOfMemoryError and keeps its inputs unchanged."""
    side = math.isqrt(accelerator.total_memory() // 4) + 4096
    column, row = torch.ones(side, 1, device=device), torch.ones(1, side, device=device)

    with no_other_error():
        message = f"a sum of {side} × {side} floats, which is more than total_memory(), did not raise"
        assert runs_out(lambda: column + row), message
        assert still_computes(device), "after running out of memory, a tensor of 65 floats does not fit any more"

    assert column.sum().item() == side and row.sum().item() == side, "running out of memory changed its inputs"
    accelerator.synchronize()


@contextlib.contextmanager
def no_other_error():
    """Turn a RuntimeError that is not torch.OutOfMemoryError into a failure that names it."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise AssertionError(f"running out of memory raises {type(error).__name__}: {str(error)[:200]}") from None


@case("profiling.oom.message", requires=[MEMORY_OOM])
def test_oom_message(accelerator, device):
    """The error of a too large allocation is a RuntimeError with a text."""
    if not accelerator.total_memory():
        environment_lacks("total_memory() is 0, so no allocation is known to be too large")
    caught = None
    try:
        torch.empty(accelerator.total_memory() + 64 * MIB, dtype=torch.uint8, device=device)
    except torch.OutOfMemoryError as error:
        caught = error

    assert isinstance(caught, RuntimeError), f"running out of memory gave {caught!r}, which is no RuntimeError"
    assert str(caught).strip(), "torch.OutOfMemoryError has an empty text"
