"""Events: completion of recorded work, and the time between two events."""

from __future__ import annotations

import itertools
import time

import pytest
import torch

from conformance.accelerators.capabilities import DEVICE, EVENT, EVENT_TIMING, STREAM
from conformance.judging.finding import stub
from conformance.plan.case import Level, case
from conformance.process.machine import slowdown
from conformance.suites.shared_bodies import assert_event_covers_work

from .conveyor import HOST, Conveyor, numbers, stale
from .timing import hold


@case("accelerator.event.none_means_host_timers", requires=[DEVICE], level=Level.CORE)
def test_none_means_host_timers(accelerator):
    """use_host_timers() is True for an accelerator without events."""
    missing, host_timers = accelerator.Event is None, accelerator.use_host_timers()

    if missing and not host_timers:
        stub("Event is None, but use_host_timers() is False: no clock is left to measure times")


@case("accelerator.event.synchronize", requires=[EVENT, STREAM])
def test_synchronize(accelerator, device):
    """event.synchronize() returns only when all work recorded before the event is complete."""
    assert_event_covers_work(accelerator, device, accelerator.Stream())


@case("accelerator.event.query", requires=[EVENT, STREAM])
def test_query(accelerator, device):
    """query() returns a bool that becomes True only when the recorded work is complete."""
    conveyor, source, side = Conveyor(accelerator, device), numbers(device), accelerator.Stream()
    target, event = torch.full_like(source, -1.0), accelerator.Event()
    accelerator.synchronize()

    with accelerator.stream(side):
        conveyor.carry(source, target)
        event.record(side)
    first = event.query()
    # A fast device may have finished already, so False is not required; only an early True is wrong.
    if first:
        assert stale(target) == 0, f"query() is True while {stale(target)} elements are stale"
    event.synchronize()
    last = event.query()

    assert type(first) is bool and type(last) is bool, (
        f"query() returned {first!r}, then {last!r}; it must return a bool"
    )
    assert last, "query() is False after the event was synchronized"


@case("accelerator.event.query_becomes_true", requires=[EVENT])
def test_query_becomes_true(accelerator, device):
    """Queued work makes progress while the host only polls query()."""
    event = accelerator.Event()
    result = numbers(device) + 1
    event.record()

    # 10 s is far more than one addition takes on any device, unless the machine is busy.
    patience = 10 * slowdown()
    deadline = time.monotonic() + patience
    while not event.query():
        assert time.monotonic() < deadline, f"query() is still False after {patience:.0f} s"
        time.sleep(0.001)

    assert torch.equal(result.cpu(), numbers(HOST) + 1)


@case("accelerator.event.after_device_synchronize", requires=[EVENT])
def test_after_device_synchronize(accelerator, device):
    """After synchronize() of the device, every recorded event is complete."""
    conveyor, source = Conveyor(accelerator, device), numbers(device)
    target, events = torch.full_like(source, -1.0), [accelerator.Event() for _ in range(3)]

    for event in events:
        conveyor.carry(source, target)
        event.record()
    accelerator.synchronize()

    answers = [event.query() for event in events]
    assert answers == [True] * 3, f"after synchronize() the events' query() returned {answers}"
    assert stale(target) == 0, f"after synchronize() {stale(target)} elements are stale"


@case("accelerator.event.record_again", requires=[EVENT, STREAM])
def test_record_again(accelerator, device):
    """An event that is recorded again marks the later point."""
    conveyor, side = Conveyor(accelerator, device), accelerator.Stream()
    source, later = numbers(device), numbers(device, 5)
    target, event = torch.full_like(source, -1.0), accelerator.Event()
    accelerator.synchronize()

    with accelerator.stream(side):
        target.copy_(source)
        event.record(side)
        conveyor.carry(later, target)
        event.record(side)
    event.synchronize()

    assert stale(target, 5) == 0, f"{stale(target, 5)} elements are stale: the event still marks its first record"


@case("accelerator.event.record_default", requires=[EVENT])
def test_record_default(accelerator, device):
    """record() without a stream records on the current stream, also when that is not the default stream."""
    conveyor, source = Conveyor(accelerator, device), numbers(device)
    target, event = torch.full_like(source, -1.0), accelerator.Event()
    accelerator.synchronize()

    with accelerator.stream(None if accelerator.Stream is None else accelerator.Stream()):
        conveyor.carry(source, target)
        event.record()
    event.synchronize()

    assert stale(target) == 0, "an event recorded on the current stream does not cover the work queued there"
    accelerator.synchronize()


@case("accelerator.event.wait_method", requires=[EVENT, STREAM])
def test_wait_method(accelerator, device):
    """Work queued on a stream after event.wait(stream) runs after the event."""
    conveyor, source, side = Conveyor(accelerator, device), numbers(device), accelerator.Stream()
    target, event = torch.full_like(source, -1.0), accelerator.Event()
    accelerator.synchronize()

    with accelerator.stream(side):
        conveyor.carry(source, target)
        event.record(side)
    event.wait(accelerator.current_stream())
    copy = target + 0

    assert stale(copy) == 0, f"{stale(copy)} elements were read before the event"
    accelerator.synchronize()


def timed(accelerator):
    """Return a new event that can take times."""
    return accelerator.Event(enable_timing=True)


def measure(accelerator, conveyor, source, times):
    """Return the milliseconds that ``times`` chains take by the device's clock."""
    target, start, end = torch.empty_like(source), timed(accelerator), timed(accelerator)
    start.record()
    conveyor.carry(source, target, times)
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


@case("accelerator.event.elapsed", requires=[EVENT_TIMING])
def test_elapsed(accelerator, device):
    """elapsed_time() returns a float that is positive with work between the events and never negative."""
    conveyor, source = Conveyor(accelerator, device), numbers(device)

    with_work = [measure(accelerator, conveyor, source, 1) for _ in range(3)]
    start, end = timed(accelerator), timed(accelerator)
    start.record()
    end.record()
    end.synchronize()
    empty = start.elapsed_time(end)

    assert all(isinstance(value, float) for value in (*with_work, empty)), (
        f"elapsed_time() returned {with_work[0]!r}; it must be a float"
    )
    assert min(with_work) > 0, f"work takes {min(with_work)} ms by the device's clock"
    assert empty >= 0, f"the time between two events in a row is {empty} ms"


@case("accelerator.event.elapsed_scales", requires=[EVENT_TIMING])
def test_elapsed_scales(accelerator, device):
    """Eight times the work takes longer by the device's clock."""
    conveyor, source = Conveyor(accelerator, device, milliseconds=10.0), numbers(device)
    # Warm up, so that the first measured chain pays no one-time costs.
    measure(accelerator, conveyor, source, 1)

    def check_scaling():
        # The shortest times count: a busy machine makes times longer.
        short = min(measure(accelerator, conveyor, source, 1) for _ in range(4))
        long = min(measure(accelerator, conveyor, source, 8) for _ in range(4))
        assert long > 2 * short, (
            f"8 x the work takes {long:.3f} ms, 1 x takes {short:.3f} ms; expected more than 2 x that"
        )

    hold(check_scaling)


@case("accelerator.event.elapsed_adds_up", requires=[EVENT_TIMING])
def test_elapsed_adds_up(accelerator, device):
    """The times between consecutive events add up to the time between the first and the last event."""
    conveyor, source = Conveyor(accelerator, device), numbers(device)
    target, events = torch.empty_like(source), [timed(accelerator) for _ in range(4)]

    for event in events:
        event.record()
        conveyor.carry(source, target)
    accelerator.synchronize()
    parts = [first.elapsed_time(second) for first, second in itertools.pairwise(events)]
    whole = events[0].elapsed_time(events[-1])

    # Allow 1 % and 0.05 ms for rounding of the separate times.
    assert abs(whole - sum(parts)) <= 0.01 * whole + 0.05, f"parts {parts} ms add up to {sum(parts)}, not {whole}"
    assert whole > 0, "the events measure no time, although work was queued between them"
    assert whole >= max(parts), f"the whole, {whole} ms, is shorter than a part, {max(parts)} ms"


@case("accelerator.event.elapsed_unrecorded", requires=[EVENT_TIMING], axes={"missing": ["start", "end", "both"]})
def test_elapsed_unrecorded(accelerator, device, missing):
    """elapsed_time() raises if one of the events was never recorded."""
    start, end = timed(accelerator), timed(accelerator)
    if missing == "end":
        start.record()
    if missing == "start":
        end.record()
    accelerator.synchronize()

    with pytest.raises((RuntimeError, ValueError)):
        start.elapsed_time(end)


@case("accelerator.event.elapsed_across_streams", requires=[EVENT_TIMING, STREAM])
def test_elapsed_across_streams(accelerator, device):
    """The time between events on two streams is positive when one stream waits for the other."""
    conveyor, source, side = Conveyor(accelerator, device), numbers(device), accelerator.Stream()
    target, start, end = torch.empty_like(source), timed(accelerator), timed(accelerator)
    accelerator.synchronize()

    with accelerator.stream(side):
        start.record(side)
        conveyor.carry(source, target)
    accelerator.current_stream().wait_stream(side)
    end.record()
    accelerator.synchronize()

    assert start.elapsed_time(end) > 0, f"time across streams is {start.elapsed_time(end)} ms"


#: Seconds in which the device is idle, and the share of them that has to be in the measured time.
IDLE, SHARE = 0.06, 0.8


@case("accelerator.event.elapsed_idle", requires=[EVENT_TIMING])
def test_elapsed_idle(accelerator, device, check):
    """The time between two events includes time in which the device has nothing to do."""
    for what, work in (("idle", 0), ("idle between two pieces of work", 1)):
        start, end = timed(accelerator), timed(accelerator)
        value = numbers(device)
        start.record()
        value = value + work
        start.synchronize()
        accelerator.synchronize()
        began = time.perf_counter()
        time.sleep(IDLE)
        slept = time.perf_counter() - began
        value = value + work
        end.record()
        end.synchronize()

        elapsed = start.elapsed_time(end)
        check.that(
            elapsed >= 1e3 * slept * SHARE,
            f"the device was {what} for {1e3 * slept:.1f} ms between events, and elapsed_time() is {elapsed:.1f} ms",
        )
        check.equal(value.cpu(), numbers(HOST) + 2 * work, "the values of the work around the idle time")
