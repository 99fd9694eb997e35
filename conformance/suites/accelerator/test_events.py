"""Events: what they say about completion, and the time between two of them."""

from __future__ import annotations

import itertools
import time

import pytest
import torch

from conformance.accelerators.capabilities import DEVICE, EVENT, EVENT_TIMING, STREAM
from conformance.case import Level, case
from conformance.finding import stub
from conformance.suites.shared_bodies import assert_event_covers_work

from .conveyor import Conveyor, numbers

HOST = torch.device("cpu")


def stale(target, start=0):
    """How many elements do not hold the numbers from ``start``."""
    return int((target.cpu() != numbers(HOST, start)).sum())


@case("accelerator.event.none_means_host_timers", requires=[DEVICE], level=Level.CORE)
def test_none_means_host_timers(accelerator):
    """Without events, durations have to be taken with the host's clock, and the accelerator says so."""
    missing, host_timers = accelerator.Event is None, accelerator.use_host_timers()

    if missing and not host_timers:
        stub("Event is None, but use_host_timers() is False: nothing can take a time")


@case("accelerator.event.synchronize", requires=[EVENT, STREAM])
def test_synchronize(accelerator, device):
    """After event.synchronize() everything recorded before it is complete, and visible to everyone."""
    assert_event_covers_work(accelerator, device, accelerator.Stream())


@case("accelerator.event.query", requires=[EVENT, STREAM])
def test_query(accelerator, device):
    """query() is a bool that becomes True, and not before the recorded work is complete."""
    conveyor, source, side = Conveyor(accelerator, device), numbers(device), accelerator.Stream()
    target, event = torch.full_like(source, -1.0), accelerator.Event()
    accelerator.synchronize()

    with accelerator.stream(side):
        conveyor.carry(source, target)
        event.record(side)
    first = event.query()
    if first:
        assert stale(target) == 0, f"query() is True while {stale(target)} elements are stale"
    event.synchronize()
    last = event.query()

    assert type(first) is bool and type(last) is bool, f"query() answers {first!r} and {last!r}"
    assert last, "query() is False after the event was synchronized"


@case("accelerator.event.query_becomes_true", requires=[EVENT])
def test_query_becomes_true(accelerator, device):
    """Work goes on while nobody waits: polling alone sees the event complete."""
    event = accelerator.Event()
    result = numbers(device) + 1
    event.record()

    deadline = time.monotonic() + 10
    while not event.query():
        assert time.monotonic() < deadline, "query() is still False after 10 s"
        time.sleep(0.001)

    assert torch.equal(result.cpu(), numbers(HOST) + 1)


@case("accelerator.event.after_device_synchronize", requires=[EVENT])
def test_after_device_synchronize(accelerator, device):
    """After synchronize() of the device every recorded event is complete."""
    conveyor, source = Conveyor(accelerator, device), numbers(device)
    target, events = torch.full_like(source, -1.0), [accelerator.Event() for _ in range(3)]

    for event in events:
        conveyor.carry(source, target)
        event.record()
    accelerator.synchronize()

    answers = [event.query() for event in events]
    assert answers == [True] * 3, f"after synchronize() the events answer {answers}"


@case("accelerator.event.record_again", requires=[EVENT, STREAM])
def test_record_again(accelerator, device):
    """An event recorded again stands for the later point."""
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

    assert stale(target, 5) == 0, f"the event still stands for its first record: {stale(target, 5)} stale elements"


@case("accelerator.event.record_default", requires=[EVENT])
def test_record_default(accelerator, device):
    """record() without a stream records on the current one, which need not be the default one."""
    conveyor, source = Conveyor(accelerator, device), numbers(device)
    target, event = torch.full_like(source, -1.0), accelerator.Event()
    accelerator.synchronize()

    with accelerator.stream(None if accelerator.Stream is None else accelerator.Stream()):
        conveyor.carry(source, target)
        event.record()
    event.synchronize()

    assert stale(target) == 0, "an event recorded on the current stream does not cover its work"
    accelerator.synchronize()


@case("accelerator.event.wait_method", requires=[EVENT, STREAM])
def test_wait_method(accelerator, device):
    """event.wait(stream) orders the stream behind the event."""
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
    return accelerator.Event(enable_timing=True)


def measure(accelerator, conveyor, source, times):
    """Milliseconds that a chain of ``times`` lengths takes by the device's clock."""
    target, start, end = torch.empty_like(source), timed(accelerator), timed(accelerator)
    start.record()
    conveyor.carry(source, target, times)
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


@case("accelerator.event.elapsed", requires=[EVENT_TIMING])
def test_elapsed(accelerator, device):
    """The time between two events is a float, positive with work in between and never negative."""
    conveyor, source = Conveyor(accelerator, device), numbers(device)

    with_work = [measure(accelerator, conveyor, source, 1) for _ in range(3)]
    start, end = timed(accelerator), timed(accelerator)
    start.record()
    end.record()
    end.synchronize()
    empty = start.elapsed_time(end)

    assert all(isinstance(value, float) for value in (*with_work, empty)), f"elapsed_time answers {with_work[0]!r}"
    assert min(with_work) > 0, f"work takes {min(with_work)} ms by the device's clock"
    assert empty >= 0, f"the time between two events in a row is {empty} ms"


@case("accelerator.event.elapsed_scales", requires=[EVENT_TIMING])
def test_elapsed_scales(accelerator, device):
    """Eight times the work takes longer: the device's clock measures the work.

    The best tries count, and there are more of them where a busy machine has slowed down the first.
    """
    conveyor, source = Conveyor(accelerator, device, milliseconds=10.0), numbers(device)
    measure(accelerator, conveyor, source, 1)
    short, long = float("inf"), float("inf")

    for _ in range(5):
        short = min(short, *(measure(accelerator, conveyor, source, 1) for _ in range(3)))
        long = min(long, *(measure(accelerator, conveyor, source, 8) for _ in range(3)))
        if long > 2 * short:
            break

    assert long > 2 * short, f"8 × the work takes {long:.3f} ms, once {short:.3f} ms"


@case("accelerator.event.elapsed_adds_up", requires=[EVENT_TIMING])
def test_elapsed_adds_up(accelerator, device):
    """The times between consecutive events add up to the time between the first and the last."""
    conveyor, source = Conveyor(accelerator, device), numbers(device)
    target, events = torch.empty_like(source), [timed(accelerator) for _ in range(4)]

    for event in events:
        event.record()
        conveyor.carry(source, target)
    accelerator.synchronize()
    parts = [first.elapsed_time(second) for first, second in itertools.pairwise(events)]
    whole = events[0].elapsed_time(events[-1])

    assert abs(whole - sum(parts)) <= 0.01 * whole + 0.05, f"parts {parts} ms add up to {sum(parts)}, whole is {whole}"
    assert whole >= max(parts), f"the whole, {whole} ms, is shorter than a part, {max(parts)} ms"


@case("accelerator.event.elapsed_unrecorded", requires=[EVENT_TIMING], axes={"missing": ["start", "end", "both"]})
def test_elapsed_unrecorded(accelerator, device, missing):
    """The time to or from an event that was never recorded raises."""
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
    """Events on two streams that wait for each other have a time between them that is not negative."""
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
