"""A device whose streams, events or graphs keep less than they promise. Work on its side streams is always late."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

from tests.defects.faults import Where
from tests.defects.late_device import LateDevice, Stream
from tests.defects.mutant import Mutant
from tests.defects.stand_ins import LATE, constant, on


def late(name: str, case: str, **members: Any) -> Mutant:
    def make() -> LateDevice:
        device = LateDevice()
        for member, value in members.items():
            setattr(device, member, value.__get__(device) if hasattr(value, "__get__") else value)
        return device

    return on(LATE, name, case, Where.STREAM, broken=make)


def _with_classes(stream: dict[str, Any] | None = None, event: dict[str, Any] | None = None) -> Callable[[], Any]:
    def make() -> LateDevice:
        device = LateDevice()
        kind = type("Stream", (Stream,), stream or {})

        def new() -> Any:
            device._all.append(kind())
            return device._all[-1]

        device.Stream = new
        device._default.__class__ = kind
        device.Event = type("Event", (device.Event,), event or {})
        return device

    return make


def streamy(name: str, case: str, stream: Any = None, event: Any = None) -> Mutant:
    return on(LATE, name, case, Where.STREAM, broken=_with_classes(stream, event))


@contextmanager
def _never_restored(self: LateDevice, stream: Any) -> Any:
    before = self._current
    self._current = stream or before
    yield
    self._current = before  # not reached after an exception


@contextmanager
def _never_entered(self: LateDevice, stream: Any) -> Any:
    yield


@contextmanager
def _eager_capture(self: LateDevice, graph: Any, pool: Any = None, stream: Any = None) -> Any:
    yield


def _replay_once(self: LateDevice, graph: Any) -> None:
    for work in graph.queue:
        work()
    graph.queue.clear()


IDLE = constant(None)
MUTANTS: tuple[Mutant, ...] = (
    streamy("wait_stream does nothing", "accelerator.stream.wait_stream[side-to-default]", {"wait_stream": IDLE}),
    streamy("wait_stream does nothing", "accelerator.stream.wait_stream[side-to-side]", {"wait_stream": IDLE}),
    streamy("wait_stream does nothing", "accelerator.stream.chain", {"wait_stream": IDLE}),
    streamy("wait_stream does nothing", "accelerator.stream.write_after_read", {"wait_stream": IDLE}),
    streamy("wait_stream does nothing", "accelerator.stream.backward", {"wait_stream": IDLE}),
    streamy("wait_event does nothing", "accelerator.stream.wait_event[side-to-default]", {"wait_event": IDLE}),
    streamy("wait_event does nothing", "accelerator.stream.wait_event[side-to-side]", {"wait_event": IDLE}),
    streamy("stream.synchronize returns early", "accelerator.stream.program_order", {"synchronize": IDLE}),
    streamy("stream.query is always True", "accelerator.stream.query", {"query": constant(True)}),
    streamy("stream.query answers None", "accelerator.stream.query", {"query": constant(None)}),
    streamy("event.synchronize returns early", "accelerator.event.synchronize", None, {"synchronize": IDLE}),
    streamy("event.query is always True", "accelerator.event.query", None, {"query": constant(True)}),
    streamy("event.query is always False", "accelerator.event.query_becomes_true", None, {"query": constant(False)}),
    streamy("event.wait does nothing", "accelerator.event.wait_method", None, {"wait": IDLE}),
    streamy("elapsed_time is negative", "accelerator.event.elapsed", None, {"elapsed_time": constant(-1.0)}),
    streamy("elapsed_time is constant", "accelerator.event.elapsed_scales", None, {"elapsed_time": constant(1.0)}),
    streamy("elapsed_time never raises", "accelerator.event.elapsed_unrecorded[end]", None,
            {"elapsed_time": constant(1.0)}),
    streamy("elapsed_time is in seconds", "profiling.time.event_within_wall", None,
            {"elapsed_time": lambda self, end: end.time - self.time}),
    streamy("elapsed_time does not add up", "accelerator.event.elapsed_adds_up", None,
            {"elapsed_time": lambda self, end: (end.time - self.time) ** 2 * 1e6}),
    late("a stream is not restored", "accelerator.stream.restored_on_exception", stream=_never_restored),
    late("a stream is never entered", "accelerator.stream.nest", stream=_never_entered),
    late("synchronize returns early", "accelerator.stream.device_synchronize", synchronize=constant(None)),
    late("streams resolve no dependency", "accelerator.flags.ordered"),
    late("streams resolve no dependency", "accelerator.flags.synchronous_values"),
    late("capturing runs the work", "accelerator.graph.capture_runs_nothing", capture_to_graph=_eager_capture),
    late("capturing runs the work", "accelerator.graph.shape", capture_to_graph=_eager_capture),
    late("a graph is replayed once", "accelerator.graph.replay_reads_inputs", replay_graph=_replay_once),
    late("replaying does nothing", "accelerator.graph.replay_is_idempotent", replay_graph=constant(None)),
    late("no graph, but a replay", "accelerator.graph.shape", create_graph=lambda self: None),
    late("nothing tells that it captures", "accelerator.graph.capturing_flag",
         is_current_stream_capturing=constant(False)),
)  # fmt: skip
