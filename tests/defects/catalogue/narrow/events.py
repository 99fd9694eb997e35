"""Events that are right in most uses: each defect here shows in one of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch

from conformance.accelerators import capabilities as can
from conformance.accelerators.claims import Capabilities, lacks
from tests.defects.faults import Fault, Where
from tests.defects.mutant import Mutant
from tests.defects.spoiling import accelerator

from .streams import ORDER

TIMES = (*ORDER, "profiling.time.*", "accelerator.flags.device_timers")
QUERIES = "defect class of event queries"
CLOCKS = "defect class of event times"
RECORDS = "DeepSpeed a41729f6a: the buffer was rewritten before its collective had read it"
NO = "the declaration says so"


def event(name: str, family: str, precedent: str, caught_by: str, *touch: str, claims: Capabilities = frozenset(),
          **fault: Any) -> Mutant:  # fmt: skip
    return Mutant(Fault(name, family, precedent, Where.STREAM, caught_by, **fault), touch, claims=claims)


def made_of(kind: type) -> dict[str, Callable[[Any], Any]]:
    return {"Event": lambda old: kind}


class Event(torch.Event):
    """An event of ours. PyTorch refuses the time to an instance of a subclass, so a twin takes it."""

    def __init__(self, device: Any = None, enable_timing: bool = False, **_: Any) -> None:
        self.twin = torch.Event(enable_timing=True) if enable_timing else None
        self.at: torch.Stream | None = None

    def record(self, stream: torch.Stream | None = None) -> None:
        self.at = stream or torch.accelerator.current_stream()
        if self.twin is not None:
            self.twin.record(self.at)
        super().record(self.at)

    def elapsed_time(self, end_event: Any) -> Any:
        assert self.twin is not None
        return self.twin.elapsed_time(end_event.twin)


class _LateAnswer(Event):
    """After synchronize() the first query() tells what was known before it."""

    late = False

    def synchronize(self) -> None:
        super().synchronize()
        self.late = not self.asked

    asked = False

    def query(self) -> bool:
        late, self.late, self.asked = self.late, False, True
        return super().query() and not late


class _NotYet(Event):
    """The first query() of an event that nobody has waited for is False."""

    waited = False

    def synchronize(self) -> None:
        super().synchronize()
        self.waited = True

    def query(self) -> bool:
        waited, self.waited = self.waited, True
        return super().query() and waited


def _unattended() -> Any:
    """query() sees what was complete when somebody last waited for the device or an event."""
    waits = [0]

    class Unattended(Event):
        recorded = 0

        def record(self, stream: torch.Stream | None = None) -> None:
            super().record(stream)
            self.recorded = waits[0]

        def synchronize(self) -> None:
            super().synchronize()
            waits[0] += 1

        def query(self) -> bool:
            return self.recorded < waits[0] and super().query()

    def synchronize(old: Any) -> Any:
        def synchronize(self: Any, device_index: int | None = None) -> None:
            old(self, device_index)
            waits[0] += 1

        return synchronize

    return accelerator(Event=lambda old: property(lambda self: Unattended), synchronize=synchronize)


class _RecordedOnce(Event):
    def record(self, stream: torch.Stream | None = None) -> None:
        if self.at is None:
            super().record(stream)


class _OnDefault(Event):
    """record() without a stream takes the default one."""

    def record(self, stream: torch.Stream | None = None) -> None:
        super().record(stream or torch.sim.default_stream())  # type: ignore[attr-defined]


class _NoWait(Event):
    def wait(self, stream: torch.Stream | None = None) -> None:
        pass


class _TensorTime(Event):
    def elapsed_time(self, end_event: Any) -> Any:
        return torch.tensor(super().elapsed_time(end_event))


class _Counting(Event):
    """The device's clock counts what was recorded."""

    ticks = itertools.count(1)

    def record(self, stream: torch.Stream | None = None) -> None:
        super().record(stream)
        self.tick = next(_Counting.ticks)

    def elapsed_time(self, end_event: Any) -> Any:
        super().elapsed_time(end_event)
        return float(end_event.tick - self.tick)


class _Overhead(Event):
    """Each interval has the cost of taking it in it."""

    def elapsed_time(self, end_event: Any) -> Any:
        return super().elapsed_time(end_event) + 2.0


class _Unrecorded(Event):
    """The time from or to an event that was not recorded is 0."""

    def elapsed_time(self, end_event: Any) -> Any:
        return super().elapsed_time(end_event) if self.at and end_event.at else 0.0


class _OwnClocks(Event):
    """Every stream has a clock of its own, and no two of them can be compared."""

    def elapsed_time(self, end_event: Any) -> Any:
        apart = self.at and end_event.at and self.at != end_event.at
        return 0.0 if apart else super().elapsed_time(end_event)


NO_EVENTS = lacks(can.EVENT, NO) | lacks(can.EVENT_TIMING, NO) | lacks(can.STREAM_ORDER, NO)
MUTANTS = (
    event("no events, and no host timers", "over-declared", "DeepSpeed 437226bf2: members narrower than the interface",
          "accelerator.event.none_means_host_timers", *TIMES, "capabilities.*", claims=NO_EVENTS,
          context=accelerator(Event=lambda old: property(lambda self: None))),
    event("query() after synchronize() is late", "event time without work", QUERIES, "accelerator.event.synchronize",
          *ORDER, members=made_of(_LateAnswer)),
    event("the first query() is False", "event time without work", QUERIES,
          "accelerator.event.after_device_synchronize", *ORDER, members=made_of(_NotYet)),
    event("query() makes no progress", "event time without work", QUERIES, "accelerator.event.query_becomes_true",
          *ORDER, context=lambda: _unattended()()),
    event("an event is recorded once", "stream order ignored", RECORDS, "accelerator.event.record_again", *ORDER,
          members=made_of(_RecordedOnce)),
    event("events are recorded on the default stream", "stream order ignored",
          "DeepSpeed be60451f6: gradients reduced behind default_stream instead of the stream that computed them",
          "accelerator.event.record_default", *ORDER, members=made_of(_OnDefault)),
    event("event.wait() orders nothing", "stream order ignored", RECORDS, "accelerator.event.wait_method", *ORDER,
          members=made_of(_NoWait)),
    event("elapsed_time is a tensor", "event time in a wrong unit", CLOCKS, "accelerator.event.elapsed", *TIMES,
          members=made_of(_TensorTime)),
    event("elapsed_time counts commands", "event time without work", CLOCKS, "accelerator.event.elapsed_scales",
          *TIMES, members=made_of(_Counting)),
    event("elapsed_time includes its own cost", "event time in a wrong unit", CLOCKS,
          "accelerator.event.elapsed_adds_up", *TIMES, members=made_of(_Overhead)),
    event("the time to an unrecorded event is 0", "unclean refusal", CLOCKS, "accelerator.event.elapsed_unrecorded[*]",
          *TIMES, members=made_of(_Unrecorded)),
    event("the time between streams is 0", "event time without work", CLOCKS,
          "accelerator.event.elapsed_across_streams", *TIMES, members=made_of(_OwnClocks)),
)  # fmt: skip
