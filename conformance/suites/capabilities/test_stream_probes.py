"""Probes of streams, events, memory counters, pinned memory, and graphs.

A probe first asks whether the accelerator says no, and then runs the accelerator area's cases of the capability.
"""

from __future__ import annotations

import torch

from conformance.accelerators.capabilities import (
    EVENT,
    EVENT_TIMING,
    GRAPH_CAPTURE,
    GRAPH_POOL,
    MEMORY_OOM,
    MEMORY_PEAK,
    MEMORY_PINNED,
    MEMORY_PINNED_ASYNC,
    MEMORY_STATS,
    MEMORY_TOTAL,
    STREAM,
    STREAM_ORDER,
    STREAM_RECORD,
)
from conformance.judging.finding import Refused, stub
from conformance.plan.case import case
from conformance.suites.accelerator import (
    test_graphs,
    test_memory,
    test_pinning,
    test_stream_memory,
    test_streams,
)
from conformance.suites.accelerator import test_memory_peak as peaks
from conformance.suites.accelerator import test_stream_order as ordering
from conformance.suites.shared_bodies import assert_event_covers_work, assert_survives_running_out

from .refusals import refuse_if_none

#: Bytes: 1 PiB, which is more than any machine can allocate.
_TOO_MUCH = 1 << 50


def need_streams(accelerator):
    """Raise Refused without a stream class; the other stream members must then be None as well."""
    test_streams.test_none_is_consistent(accelerator)
    refuse_if_none(accelerator.Stream, "Stream")


@case("capabilities.stream", requires=[STREAM], adaptive=True)
def test_stream(accelerator, device):
    """A stream can be entered and left, and its work is right after it is synchronized."""
    need_streams(accelerator)

    test_streams.test_nest(accelerator)
    test_streams.test_program_order(accelerator, device)


@case("capabilities.stream.order", requires=[STREAM_ORDER], adaptive=True)
def test_stream_order(accelerator, device):
    """A stream that waits for another stream sees that stream's work."""
    need_streams(accelerator)

    ordering.test_wait_stream(accelerator, device, "side-to-side")
    ordering.test_wait_event(accelerator, device, "side-to-side")


@case("capabilities.stream.record", requires=[STREAM_RECORD], adaptive=True)
def test_stream_record(accelerator, device):
    """Memory that another stream uses is not allocated again."""
    need_streams(accelerator)

    test_stream_memory.test_record_keeps_memory(accelerator, device, "whole")


@case("capabilities.event", requires=[EVENT], adaptive=True)
def test_event(accelerator, device):
    """A synchronized event is complete, and so is the work queued before it."""
    refuse_if_none(accelerator.Event, "Event")

    assert_event_covers_work(accelerator, device, accelerator.current_stream())


@case("capabilities.event.timing", requires=[EVENT_TIMING], adaptive=True)
def test_event_timing(accelerator, device):
    """Eight times the work takes longer by the device's clock."""
    from conformance.suites.accelerator import test_events

    refuse_if_none(accelerator.Event, "Event")
    if accelerator.use_host_timers():
        raise Refused("use_host_timers() is True")

    test_events.test_elapsed_scales(accelerator, device)


def need_counters(accelerator):
    """Raise Refused if the allocator counts nothing."""
    if accelerator.memory_stats() == {}:
        raise Refused("memory_stats() is empty: the allocator counts nothing")


@case("capabilities.memory.stats", requires=[MEMORY_STATS], adaptive=True)
def test_memory_stats(accelerator, device):
    """Allocated memory rises and falls with a tensor that is created and freed."""
    need_counters(accelerator)
    test_memory.settle(accelerator)
    before = accelerator.memory_allocated()
    tensor = torch.ones(1 << 20, device=device)
    if accelerator.memory_allocated() == before:
        stub(f"memory_allocated() stays {before!r} after a tensor of {tensor.nbytes} bytes was created")
    del tensor

    for size in ("1048577", "33554433"):
        test_memory.test_allocated_follows(accelerator, device, size)


@case("capabilities.memory.peak", requires=[MEMORY_PEAK], adaptive=True)
def test_memory_peak(accelerator, device):
    """The peak covers a short-lived tensor."""
    need_counters(accelerator)

    peaks.test_peak(accelerator, device)


@case("capabilities.memory.total", requires=[MEMORY_TOTAL], adaptive=True)
def test_memory_total(accelerator, device):
    """Total memory is positive, and live tensors lower the available memory."""
    test_memory.test_total(accelerator)
    test_memory.test_available_drops(accelerator, device)


@case("capabilities.memory.oom", requires=[MEMORY_OOM], adaptive=True)
def test_memory_oom(device):
    """An allocation larger than all memory raises torch.OutOfMemoryError, and the device still works."""
    assert_survives_running_out(device, _TOO_MUCH)


def need_pinning(accelerator):
    """Raise Refused if pin_memory() returns pageable memory and is_pinned() says so."""
    pinned = accelerator.pin_memory(torch.arange(4096.0))
    answer = accelerator.is_pinned(pinned)
    assert isinstance(answer, bool), f"is_pinned() returned {answer!r}; it must return a bool"
    if not answer:
        raise Refused("pin_memory() returns pageable memory, and is_pinned() is False for it")


@case("capabilities.memory.pinned", requires=[MEMORY_PINNED], adaptive=True)
def test_memory_pinned(accelerator, device):
    """Pinned memory is pinned and keeps its values, and no other memory is pinned."""
    test_pinning.test_pageable_is_not_pinned(accelerator)
    need_pinning(accelerator)

    test_pinning.test_values(accelerator, device)
    test_pinning.test_views(accelerator)


@case("capabilities.memory.pinned-async", requires=[MEMORY_PINNED_ASYNC], adaptive=True)
def test_memory_pinned_async(accelerator, device):
    """Non-blocking copies from and to pinned memory are complete after synchronize()."""
    need_pinning(accelerator)

    test_pinning.test_to_device(accelerator, device)
    test_pinning.test_to_host(accelerator, device)


def need_graphs(accelerator, device):
    """Raise Refused without graphs; the other graph members must then have no effect."""
    test_graphs.test_shape(accelerator, device)
    refuse_if_none(accelerator.create_graph(), "create_graph()")


@case("capabilities.graph.capture", requires=[GRAPH_CAPTURE], adaptive=True)
def test_graph_capture(accelerator, device):
    """Captured work runs at each replay on the current values of its inputs."""
    need_graphs(accelerator, device)

    test_graphs.test_replay_reads_inputs(accelerator, device)


@case("capabilities.graph.pool", requires=[GRAPH_POOL], adaptive=True)
def test_graph_pool(accelerator, device):
    """Two graphs that share one memory pool both replay correctly."""
    need_graphs(accelerator, device)

    test_graphs.test_pool(accelerator, device)
