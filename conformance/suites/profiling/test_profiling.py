"""Profiling: what is counted, timed and remembered agrees with what was done."""

from __future__ import annotations

import contextlib
import itertools
import math
import time

import torch
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
from conformance.case import Level, case
from conformance.finding import environment_lacks
from conformance.suites.accelerator.conveyor import Conveyor, numbers
from conformance.suites.shared_bodies import assert_survives_running_out, runs_out, still_computes

from .recording import device_microseconds, record

MIB = 1 << 20


@case("profiling.profiler.operations", requires=[PROFILER])
def test_operations(accelerator, device):
    """The profiler counts each operation as often as it ran."""
    left = torch.ones(129, 129, device=device)

    def work():
        for _ in range(7):
            left @ left
        return left + 1

    events = record(accelerator, work)

    counts = {name: events[name].count if name in events else 0 for name in ("aten::mm", "aten::add")}
    assert counts == {"aten::mm": 7, "aten::add": 1}, f"of 7 products and 1 sum the profiler recorded {counts}"


@case("profiling.profiler.device_time", requires=[PROFILER])
def test_device_time(accelerator, device):
    """Work has time: on the device, or on the host where the host is the device; more work has more of it."""
    conveyor, source = Conveyor(accelerator, device, milliseconds=5.0), numbers(device)
    target = torch.empty_like(source)

    def microseconds(times):
        events = record(accelerator, lambda: conveyor.carry(source, target, times))
        if device.type != "cpu":
            return device_microseconds(events)
        return sum(event.self_cpu_time_total for event in events.values())

    short, long = (min(microseconds(times) for _ in range(3)) for times in (1, 8))

    assert short > 0, "the profiler saw no time on the device"
    assert long > short, f"8 × the work has {long:.0f} µs in the profiler, once {short:.0f} µs"


@case("profiling.profiler.ranges", requires=[PROFILER, RANGES])
def test_profiler_ranges(accelerator, device):
    """Profiling around ranges records the operations inside them."""

    def work():
        accelerator.range_push("outer")
        torch.ones(65, device=device).mul(2)
        accelerator.range_pop()

    events = record(accelerator, work)

    assert "aten::mul" in events, f"inside a range the profiler recorded only {sorted(events)}"


#: Operations with a formula: two floating-point operations per multiplication and addition.
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


@case("profiling.flops.forward", requires=[MEMORY], level=Level.CORE, axes={"function": list(FLOPS)})
def test_flops_forward(device, function):
    """The flop counter sees on the device exactly what the formula gives."""
    work, expected = FLOPS[function]

    with FlopCounterMode(display=False) as counter:
        work(device)

    found = counter.get_total_flops()
    assert found == expected, f"{function} counts {found} operations, the formula gives {expected}"


@case("profiling.flops.backward", requires=[MEMORY], level=Level.CORE)
def test_flops_backward(device):
    """A backward pass with two gradients costs twice its forward pass."""
    left = torch.ones(17, 31, device=device, requires_grad=True)
    right = torch.ones(31, 13, device=device, requires_grad=True)

    with FlopCounterMode(display=False) as counter:
        (left @ right).sum().backward()

    found, expected = counter.get_total_flops(), 3 * 2 * 17 * 31 * 13
    assert found == expected, f"forward and backward count {found} operations, the formula gives {expected}"


@case("profiling.flops.dtypes", requires=[DTYPE], axes={"dtype": ["float32", "float16", "bfloat16"]})
def test_flops_dtypes(device, dtype):
    """The count does not depend on the dtype."""
    left = torch.ones(17, 31, device=device, dtype=getattr(torch, dtype))

    with FlopCounterMode(display=False) as counter:
        left @ left.t()

    assert counter.get_total_flops() == 2 * 17 * 31 * 17, f"{dtype}: {counter.get_total_flops()} operations"


@case("profiling.time.event_within_wall", requires=[EVENT_TIMING])
def test_event_within_wall(accelerator, device):
    """By the device's clock work takes no longer than by the host's, and in the best of five tries not far less.

    A loaded host makes the wall time longer, never shorter, and ten times longer is no rarity where many share it; a
    wrong unit is off by a thousand. So the second half needs one try in five, and that within a twentieth.
    """
    conveyor, source = Conveyor(accelerator, device, milliseconds=50.0), numbers(device)
    target, shares = torch.empty_like(source), []
    for _ in range(5):
        start, end = accelerator.Event(enable_timing=True), accelerator.Event(enable_timing=True)
        accelerator.synchronize()
        started = time.perf_counter()
        start.record()
        conveyor.carry(source, target)
        end.record()
        accelerator.synchronize()
        wall = (time.perf_counter() - started) * 1000
        shares.append(start.elapsed_time(end) / wall)

    # 5 % for the clocks themselves to differ.
    assert max(shares) <= 1.05, f"the device's clock counts {max(shares):.2f} × the wall time"
    assert max(shares) >= 0.05, f"the device's clock counts at most {max(shares):.4f} of the wall time; is it in ms?"


@case("profiling.time.work_scales", requires=[MEMORY], level=Level.CORE)
def test_work_scales(accelerator, device):
    """Measured with synchronize() around it, sixteen times the work takes longer: throughput can be measured."""
    conveyor, source = Conveyor(accelerator, device), numbers(device)

    short, long = conveyor.seconds(source, 1), conveyor.seconds(source, 16)

    assert long > short, f"16 × the work takes {long * 1e3:.2f} ms, once {short * 1e3:.2f} ms"


@case("profiling.memory.finite", requires=[MEMORY], level=Level.CORE)
def test_memory_finite(accelerator, device):
    """What a profiler prints of memory is finite and not negative, with work going on."""
    kept = [torch.ones(MIB, device=device) for _ in range(4)]
    members = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "available_memory")

    values = {member: getattr(accelerator, member)() for member in members}

    assert len(kept) == 4
    bad = {member: value for member, value in values.items() if not math.isfinite(value) or value < 0}
    assert not bad, f"memory numbers are {bad}"


@case("profiling.memory.monotone", requires=[MEMORY_STATS])
def test_memory_monotone(accelerator, device):
    """Each further tensor raises allocated memory, and each freed one lowers it."""
    kept, values = [], [accelerator.memory_allocated()]

    for _ in range(6):
        kept.append(torch.ones(MIB, device=device))
        values.append(accelerator.memory_allocated())
    for _ in range(6):
        kept.pop()
        values.append(accelerator.memory_allocated())

    rising, falling = values[:7], values[6:]
    assert all(b - a >= 4 * MIB for a, b in itertools.pairwise(rising)), f"while allocating: {rising}"
    assert all(a - b >= 4 * MIB for a, b in itertools.pairwise(falling)), f"while freeing: {falling}"


@case("profiling.oom.single", requires=[MEMORY_OOM])
def test_oom_single(accelerator, device):
    """A tensor larger than the device raises torch.OutOfMemoryError; the device works on and nothing was harmed."""
    with no_other_error():
        assert_survives_running_out(device, accelerator.total_memory() + 64 * MIB)


@case("profiling.oom.filled", requires=[MEMORY_OOM, MEMORY_STATS])
def test_oom_filled(accelerator, device):
    """A device filled up tensor by tensor raises, and has its memory back when they are freed."""
    before, size = accelerator.memory_allocated(), accelerator.total_memory() // 8
    kept = []

    def fill():
        for _ in range(10):
            kept.append(torch.empty(size, dtype=torch.uint8, device=device))

    with no_other_error():
        assert runs_out(fill), f"ten eighths of the memory were allocated: {len(kept)} tensors of {size} bytes"
    kept.clear()
    accelerator.empty_cache()

    left = accelerator.memory_allocated() - before
    assert left <= 0, f"{left} bytes stay allocated after running out of memory"
    with no_other_error():
        out = runs_out(lambda: torch.empty(size, dtype=torch.uint8, device=device))
    assert not out, "what fitted before does not fit any more"


@case("profiling.oom.inside_operation", requires=[MEMORY_OOM])
def test_oom_inside_operation(accelerator, device):
    """An operation that needs too much memory for its result raises, and leaves its inputs."""
    side = math.isqrt(accelerator.total_memory() // 4) + 4096
    column, row = torch.ones(side, 1, device=device), torch.ones(1, side, device=device)

    with no_other_error():
        assert runs_out(lambda: column + row), f"a sum of {side} × {side} floats fits into less memory"
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
    """The error is an exception that says something, and is a RuntimeError, as callers expect."""
    if not accelerator.total_memory():
        environment_lacks("the device does not know its size")
    caught = None
    try:
        torch.empty(accelerator.total_memory() + 64 * MIB, dtype=torch.uint8, device=device)
    except torch.OutOfMemoryError as error:
        caught = error

    assert isinstance(caught, RuntimeError), f"running out of memory gave {caught!r}"
    assert str(caught).strip(), "the error says nothing"
