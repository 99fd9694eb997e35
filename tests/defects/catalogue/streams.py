"""Streams, events and synchronization."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import torch

from tests.defects.faults import Fault, Where
from tests.defects.mutant import Mutant
from tests.defects.spoiling import accelerator

#: Collectives run on a stream of their own.
ORDER = (
    "accelerator.stream.*",
    "accelerator.event.*",
    "capabilities.stream*",
    "capabilities.event*",
    "capabilities.comm",
)
TIMES = (
    "accelerator.event.*",
    "accelerator.pairs.elapsed",
    "capabilities.event*",
    "profiling.time.*",
    "accelerator.flags.device_timers",
)
#: Whatever lets the host read results of a side stream.
HOST_WAITS = (*ORDER, "accelerator.synchronize.*", "capabilities.synchronize", "accelerator.pin.*",
              "accelerator.graph.*", "capabilities.memory.pinned*", "capabilities.graph.*",
              "accelerator.flags.device_timers")  # fmt: skip


def stream(name: str, family: str, precedent: str, caught_by: str, *touch: str, peer_misses: bool = False,
           also_run: tuple[str, ...] = (), **fault: Any) -> Mutant:  # fmt: skip
    what = Fault(name, family, precedent, Where.STREAM, caught_by, **fault)
    return Mutant(what, touch, also_run, peer_misses=peer_misses)


@contextmanager
def _never_restored(stream: Any) -> Any:
    if stream is not None:
        torch.accelerator.set_stream(stream)
    yield


@contextmanager
def _restored_without_exception(stream: Any) -> Any:
    before = torch.accelerator.current_stream()
    if stream is not None:
        torch.accelerator.set_stream(stream)
    yield
    torch.accelerator.set_stream(before)


@contextmanager
def _never_entered(stream: Any) -> Any:
    yield


def _one_for_all(old: Any) -> Any:
    made: list[Any] = []

    def make(*args: Any, **kwargs: Any) -> Any:
        made.append(made[0] if made else old(*args, **kwargs))
        return made[0]

    return make


BE604 = "DeepSpeed be60451f6: gradients reduced behind default_stream instead of the stream that computed them"
DAC = "DeepSpeed dac1525b3: record_stream missing in overlap_comm, NaN at step 3"
IPG = "DeepSpeed a41729f6a: the buffer was rewritten before its collective had read it"

MUTANTS = (
    stream("wait_stream does nothing", "stream order ignored", BE604, "accelerator.stream.wait_stream[*]", *ORDER,
           switches={"stream_wait_ignored": 1}, peer_misses=True),
    stream("event.wait does nothing", "stream order ignored", IPG, "accelerator.event.wait_method", *ORDER,
           switches={"event_wait_ignored": 1}),
    stream("stream.query is always True", "event time without work", "defect class of event queries",
           "accelerator.stream.query", *ORDER, switches={"stream_query_true": 1}),
    stream("event.query is always True", "event time without work", "defect class of event queries",
           "accelerator.event.query", *ORDER, switches={"event_query_true": 1}, peer_misses=True),
    stream("stream.synchronize returns at once", "stale or missing sync",
           "DeepSpeed 15ad92b45: a sync hid a wrong order", "accelerator.stream.program_order", *ORDER,
           switches={"stream_sync_ignored": 1}),
    stream("event.synchronize returns at once", "stale or missing sync", "DeepSpeed 15ad92b45",
           "accelerator.event.synchronize", *ORDER, "capabilities.event", switches={"event_sync_ignored": 1}),
    stream("device synchronize returns at once", "stale or missing sync",
           "DeepSpeed 7dfa67aea: offload read before a sync", "accelerator.stream.device_synchronize", *HOST_WAITS,
           "utils.placement.non_blocking*", switches={"device_sync_ignored": 1}),
    stream("synchronize(i) waits for the current device", "stale or missing sync",
           "DeepSpeed 697f945a0: synchronized devices", "accelerator.synchronize.every_device",
           context=accelerator(synchronize=lambda old: lambda self, device_index=None: old(self))),
    stream("elapsed_time is 0", "event time without work", "seen missed by a peer suite", "accelerator.event.elapsed",
           *TIMES, also_run=("profiling.time.*",), switches={"event_elapsed_constant": 0}, peer_misses=True),
    stream("elapsed_time is constant", "event time without work", "defect class of event times",
           "accelerator.event.elapsed_scales", *TIMES, also_run=("profiling.time.*",),
           switches={"event_elapsed_constant": 1}),
    stream("elapsed_time is negative", "event time without work", "defect class of event times",
           "accelerator.event.elapsed", *TIMES, also_run=("profiling.time.*",),
           switches={"event_elapsed_constant": -1}),
    stream("elapsed_time is in microseconds", "event time in a wrong unit", "seen missed by a peer suite",
           "profiling.time.event_within_wall", also_run=("profiling.time.*",), switches={"event_elapsed_scale": 1000},
           peer_misses=True),
    stream("elapsed_time is in seconds", "event time in a wrong unit", "defect class of event times",
           "profiling.time.event_within_wall", also_run=("profiling.time.*",), switches={"event_elapsed_scale": 0.001}),
    stream("work takes no device time", "event time without work", "defect class of event times",
           "profiling.time.event_within_wall", *TIMES, "capabilities.profiler", "profiling.profiler.*",
           also_run=("profiling.time.*", "profiling.profiler.*"), switches={"event_time_without_work": 1}),
    stream("elapsed_time leaves out idle time", "event time without work", "intel-extension-for-pytorch #568",
           "accelerator.event.elapsed_idle", "profiling.time.*", switches={"event_leaves_out_idle": 1}),
    stream("a stream is never restored", "stream order ignored", "DeepSpeed be60451f6", "accelerator.stream.nest",
           "accelerator.*", "capabilities.*", members={"stream": lambda old: _never_restored}),
    stream("a stream is not restored after an exception", "stream order ignored", "DeepSpeed be60451f6",
           "accelerator.stream.restored_on_exception", "accelerator.*", "capabilities.*",
           members={"stream": lambda old: _restored_without_exception}),
    stream("a stream is never entered", "stream order ignored", "defect class of stream contexts",
           "accelerator.stream.nest", *ORDER, "accelerator.graph.*", "capabilities.graph.*",
           members={"stream": lambda old: _never_entered}),
    stream("all new streams are one", "stream order ignored", "defect class of stream pools",
           "accelerator.stream.distinct", *ORDER, members={"Stream": _one_for_all}),
    stream("the default stream is the current one", "stream order ignored", BE604,
           "accelerator.stream.default_is_current",
           context=accelerator(default_stream=lambda old: lambda self, device_index=None:
                               self.current_stream(device_index))),
    stream("current_stream ignores the index", "stream order ignored", "defect class of stream contexts",
           "accelerator.stream.per_device",
           context=accelerator(current_stream=lambda old: lambda self, device_index=None: old(self))),
    stream("events cannot be made", "over-declared", "DeepSpeed 437226bf2: members narrower than the interface",
           "accelerator.event.*", *TIMES, "accelerator.stream.*", "capabilities.*", "accelerator.interface.*",
           context=accelerator(Event=lambda old: property(lambda self: None))),
)  # fmt: skip
