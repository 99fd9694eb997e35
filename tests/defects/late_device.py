"""The host as a device whose side streams are late, for testing the cases that need streams, events and graphs.

What is queued on a side stream runs when something waits for it; until then its results are poison. So a missing
wait is wrong every time, and never by chance. Graphs record in the same way and run when they are replayed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.accelerators.registry import resolve


class _Recorder(TorchDispatchMode):
    """Puts off every operation: queues it, and gives out poison in place of its result."""

    def __init__(self, queue: list[Callable[[], Any]]) -> None:
        super().__init__()
        self._queue = queue

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.is_view or torch.Tag.inplace_view in func.tags:
            return func(*args, **kwargs)
        written = [a for a, s in zip(args, func._schema.arguments, strict=False) if _is_written(s)]
        before = [tensor.clone() for tensor in written]
        result = func(*args, **kwargs)
        for tensor, old in zip(written, before, strict=True):
            tensor.data.copy_(old)
        if not isinstance(result, torch.Tensor) or written:
            self._queue.append(lambda: func(*args, **kwargs))
            return result
        if result.is_floating_point():
            result.fill_(float("nan"))
        # Through .data, because autograd must not take the late result for a change of a saved tensor.
        memory = result.data
        self._queue.append(lambda: memory.copy_(func(*args, **kwargs)))
        return result


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


@torch.no_grad()
def _run_all(queue: list[Callable[[], Any]]) -> None:
    for work in queue:
        work()


class Stream:
    """A queue that runs when it is waited for."""

    def __init__(self) -> None:
        self.queue: list[Callable[[], Any]] = []

    def run(self) -> None:
        queue, self.queue[:] = list(self.queue), []
        _run_all(queue)

    synchronize = run

    def query(self) -> bool:
        return not self.queue

    def wait_stream(self, other: Stream) -> None:
        other.run()

    def wait_event(self, event: Event) -> None:
        event.synchronize()


class Event:
    """A point on a stream, with its time."""

    owner: Any = None

    def __init__(self, enable_timing: bool = False) -> None:
        self.stream: Stream | None = None
        self.time: float | None = None

    def record(self, stream: Stream | None = None) -> None:
        self.stream, self.time = stream or type(self).owner.current_stream(), None
        if self.stream.queue:
            self.stream.queue.append(self._pass)
        else:
            self._pass()

    def _pass(self) -> None:
        self.time = time.perf_counter()

    def query(self) -> bool:
        return self.time is not None

    def synchronize(self) -> None:
        if self.stream is not None:
            self.stream.run()

    def wait(self, stream: Stream | None = None) -> None:
        self.synchronize()

    def elapsed_time(self, end: Event) -> float:
        if self.time is None or end.time is None:
            raise RuntimeError("both events must be recorded")
        return (end.time - self.time) * 1000


class Graph:
    """Recorded work."""

    def __init__(self) -> None:
        self.queue: list[Callable[[], Any]] = []

    def pool(self) -> int:
        return 1


class LateDevice:
    """Our CPU accelerator, with late streams, events and graphs."""

    Stream = Stream

    def __init__(self) -> None:
        self._host = resolve("cpu").load()
        self._default = Stream()
        self._current, self._all, self._capturing = self._default, [self._default], False
        self.Event = type("Event", (Event,), {"owner": self})
        self.Stream = self._new_stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._host, name)

    def _new_stream(self) -> Stream:
        self._all.append(Stream())
        return self._all[-1]

    def current_stream(self, device_index: int | None = None) -> Stream:
        return self._current

    def default_stream(self, device_index: int | None = None) -> Stream:
        return self._default

    @contextmanager
    def stream(self, stream: Stream | None) -> Iterator[None]:
        before = self._current
        if stream is None or stream is before:
            yield
            return
        self._current = stream
        try:
            if stream is self._default:
                with torch.utils._python_dispatch._disable_current_modes():
                    yield
            else:
                with _Recorder(stream.queue):
                    yield
        finally:
            self._current = before

    def synchronize(self, device_index: int | None = None) -> None:
        for stream in self._all:
            stream.run()

    def is_synchronized_device(self) -> bool:
        return False

    def use_host_timers(self) -> bool:
        return False

    def resolves_data_dependency(self) -> bool:
        return False

    def create_graph(self) -> Any:
        return Graph()

    @contextmanager
    def capture_to_graph(self, graph: Any, pool: Any = None, stream: Any = None) -> Iterator[None]:
        self._capturing = True
        try:
            with _Recorder(graph.queue):
                yield
        finally:
            self._capturing = False

    def is_current_stream_capturing(self) -> bool:
        return self._capturing

    def replay_graph(self, graph: Any) -> None:
        _run_all(graph.queue)
