"""Streams that order most things: each defect here shows in one way of using them only."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch

from conformance.accelerators import capabilities as can
from conformance.accelerators.claims import Capabilities, Element, lacks
from tests.defects.faults import Fault, Where
from tests.defects.mutant import Mutant
from tests.defects.spoiling import accelerator, on_device, replaced, spoiled

ORDER = ("accelerator.stream.*", "accelerator.event.*", "capabilities.stream*", "capabilities.event*")
BE604 = "DeepSpeed be60451f6: gradients reduced behind default_stream instead of the stream that computed them"
DAC = "DeepSpeed dac1525b3: record_stream missing in overlap_comm, NaN at step 3"
OFFLOAD = "DeepSpeed 7dfa67aea: offload read before a sync"
CONTEXTS = "defect class of stream contexts"

Context = Callable[[], AbstractContextManager[Any]]


NO = "the declaration says so"
#: Graphs are captured on streams.
NO_STREAMS = frozenset[Element]().union(
    *(lacks(what, NO) for what in (can.STREAM, can.STREAM_ORDER, can.STREAM_RECORD, can.GRAPH_CAPTURE, can.GRAPH_POOL))
)


def stream(name: str, precedent: str, caught_by: str, *touch: str, family: str = "stream order ignored",
           claims: Capabilities = frozenset(), **fault: Any) -> Mutant:  # fmt: skip
    return Mutant(Fault(name, family, precedent, Where.STREAM, caught_by, **fault), touch, claims=claims)


def both(*contexts: Context) -> Context:
    @contextmanager
    def context() -> Iterator[None]:
        with ExitStack() as stack:
            for one in contexts:
                stack.enter_context(one())
            yield

    return context


def _current() -> torch.Stream:
    return torch.accelerator.current_stream()


def _is_side() -> bool:
    return _current().stream_id != 0


# --- waits between streams -----------------------------------------------------------------------------------------


class _NotBehindDefault(torch.Stream):
    def wait_stream(self, stream: torch.Stream) -> None:
        if stream.stream_id:
            super().wait_stream(stream)


class _NoEvents(torch.Stream):
    def wait_event(self, event: torch.Event) -> None:
        pass


class _NotTransitive(torch.Stream):
    """A wait for a stream that waits itself is lost."""

    def wait_stream(self, stream: torch.Stream) -> None:
        self.waits = True
        if not getattr(stream, "waits", False):
            super().wait_stream(stream)


def _put_off() -> Context:
    """The default stream waits before its next read. ``fill_`` reads nothing."""
    pending: list[torch.Stream] = []

    class Default(torch.Stream):
        def wait_stream(self, stream: torch.Stream) -> None:
            pending.append(stream)

    def read(call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        while pending:
            _current().wait_stream(pending.pop())
        return call(*args, **kwargs)

    def current_stream(old: Any) -> Any:
        def current_stream(self: Any, device_index: int | None = None) -> Any:
            now = old(self, device_index)
            if now.stream_id or now.device_index:
                return now
            return Default(stream_id=0, device_index=0, device_type=now.device_type)

        return current_stream

    reads = dict.fromkeys(("add", "sum", "mm", "mul", "copy_", "_to_copy", "_local_scalar_dense", "ones_like"), read)
    return both(accelerator(current_stream=current_stream), spoiled(**reads))


def _apart() -> Context:
    """backward() of what was computed on a side stream leaves the gradients on a stream of its own."""
    aside: set[int] = set()

    def summed(call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = call(*args, **kwargs)
        if on_device(result) and _is_side():
            aside.add(result.data_ptr())
        return result

    def backward(old: Any) -> Any:
        def run(self: torch.Tensor, *args: Any, **kwargs: Any) -> None:
            if not on_device(self) or self.data_ptr() not in aside:
                return old(self, *args, **kwargs)
            own = torch.Stream(device=self.device)
            own.wait_stream(_current())
            with torch.sim.stream(own):  # type: ignore[attr-defined]
                return old(self, *args, **kwargs)

        return run

    return both(spoiled(sum=summed), replaced(torch.Tensor, backward=backward))


# --- order on one stream -------------------------------------------------------------------------------------------


class _Overtaken:
    """On a side stream, a copy out of a buffer that copies fill is overtaken by the next copy into that buffer."""

    def __init__(self) -> None:
        self.filled: defaultdict[int, set[int]] = defaultdict(set)
        self.late: list[tuple[torch.Stream, torch.Tensor, torch.Tensor]] = []

    def flush(self) -> None:
        while self.late:
            where, target, source = self.late.pop()
            with torch.sim.stream(where):  # type: ignore[attr-defined]
                target.copy_(source)

    def copied(self, call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        target, source = args[:2]
        now = _current()
        if not (on_device(target) and on_device(source) and now.stream_id):
            self.flush()
            return call(*args, **kwargs)
        if source.data_ptr() in self.filled[now.stream_id]:
            self.flush()
            self.late.append((now, target, source))
            return target
        self.filled[now.stream_id].add(target.data_ptr())
        result = call(*args, **kwargs)
        if self.late and self.late[-1][2] is target:
            self.flush()
        return result

    def context(self) -> AbstractContextManager[Any]:
        def synchronize(old: Any) -> Any:
            def synchronize(accelerator: Any, device_index: int | None = None) -> None:
                self.flush()
                self.filled.clear()
                old(accelerator, device_index)

            return synchronize

        flush = self.flush

        class Flushing(torch.Stream):
            def synchronize(self) -> None:
                flush()
                super().synchronize()

        stream_class = property(lambda accelerator: Flushing)
        return both(spoiled(copy_=self.copied), accelerator(synchronize=synchronize, Stream=lambda old: stream_class))()


def _fill_first() -> Context:
    """fill_ of a large tensor on the default stream is done before the sum that was queued ahead of it."""
    last: list[Any] = []

    def add(call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = call(*args, **kwargs)
        if on_device(result) and result.numel() >= 1 << 16 and not _is_side():
            last[:] = [args[0], result]
        return result

    def fill(call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = call(*args, **kwargs)
        if last and last[0] is args[0] and not _is_side():
            with torch.no_grad():
                last[1].copy_(args[0])
        last.clear()
        return result

    return spoiled(add=add, fill_=fill)


def _last_stream_only() -> Context:
    """synchronize() waits for the side stream that was entered last; for the others it takes another call."""
    entered: defaultdict[int, list[Any]] = defaultdict(list)

    def stream(old: Any) -> Any:
        def stream(self: Any, stream: Any) -> Any:
            if stream is not None and stream.stream_id:
                entered[stream.device_index].append(stream)
            return old(self, stream)

        return stream

    left: defaultdict[int, list[Any]] = defaultdict(list)

    def synchronize(old: Any) -> Any:
        def synchronize(self: Any, device_index: int | None = None) -> None:
            index = self.current_device() if device_index is None else device_index
            for due in (*left.pop(index, ()), self.default_stream(index), *entered[index][-1:]):
                due.synchronize()
            left[index] = entered.pop(index, [])[:-1]

        return synchronize

    return accelerator(stream=stream, synchronize=synchronize)


# --- memory --------------------------------------------------------------------------------------------------------


def _recorded_only(written: bool) -> Context:
    """record_stream holds for what the stream has written, or for what it has not."""
    writes: dict[int, int] = {}

    def copied(call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = call(*args, **kwargs)
        if on_device(args[0]):
            writes[args[0].data_ptr()] = _current().stream_id
        return result

    def recorded(call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensor, by = args
        if (writes.get(tensor.data_ptr()) == by.stream_id) is written:
            return call(*args, **kwargs)
        return None

    return spoiled(copy_=copied, record_stream=recorded)


# --- contexts ------------------------------------------------------------------------------------------------------


def _swallowing(old: Any) -> Any:
    def stream(self: Any, stream: Any) -> Any:
        return contextlib.suppress(Exception) if stream is None else old(self, stream)

    return stream


def _first_restored(old: Any) -> Any:
    """Every context restores what was current before the outermost one."""
    outside: list[torch.Stream] = []

    @contextmanager
    def stream(stream: torch.Stream | None) -> Iterator[None]:
        if stream is None:
            yield
            return
        outside.append(_current())
        try:
            with old(stream):
                yield
        finally:
            first = outside[0]
            outside.pop()
            torch.accelerator.set_stream(first)

    return stream


def _one_for_each_device(old: Any) -> Any:
    made: dict[int, Any] = {}

    def make(*args: Any, **kwargs: Any) -> Any:
        new = old(*args, **kwargs)
        return made.setdefault(new.device_index, new)

    return make


MUTANTS = (
    stream("a wait for the default stream is lost", BE604, "accelerator.stream.wait_stream[default-to-side]",
           *ORDER, members={"Stream": lambda old: _NotBehindDefault}),
    stream("wait_event does nothing", "DeepSpeed a41729f6a: the buffer was rewritten before its collective had read it",
           "accelerator.stream.wait_event[*]", *ORDER, members={"Stream": lambda old: _NoEvents}),
    stream("a wait for a stream that waits is lost", BE604, "accelerator.stream.chain", *ORDER,
           members={"Stream": lambda old: _NotTransitive}),
    stream("waits are put off until the next read", "defect class of hazards: a write after a read",
           "accelerator.stream.write_after_read", *ORDER, context=lambda: _put_off()()),
    stream("backward of a side stream's work is not waited for", BE604, "accelerator.stream.backward", *ORDER,
           context=lambda: _apart()()),
    stream("copies on one stream overtake each other", "defect class of copy engines",
           "accelerator.stream.program_order", *ORDER, context=lambda: _Overtaken().context()),
    stream("fills overtake sums", "defect class of queues: memset on another engine",
           "accelerator.stream.program_order_without", *ORDER, context=lambda: _fill_first()()),
    stream("synchronize waits for the last side stream only", OFFLOAD, "accelerator.stream.device_synchronize", *ORDER,
           "accelerator.synchronize.*", "capabilities.synchronize", family="stale or missing sync",
           context=lambda: _last_stream_only()()),
    stream("record_stream is for written memory only", DAC, "accelerator.stream.record_keeps_memory[whole]", *ORDER,
           "capabilities.memory.*", context=lambda: _recorded_only(written=True)()),
    stream("record_stream is for read memory only", DAC, "accelerator.stream.record_keeps_written_memory", *ORDER,
           "capabilities.memory.*", context=lambda: _recorded_only(written=False)()),
    stream("stream(None) swallows exceptions", CONTEXTS, "accelerator.stream.context_of_none", *ORDER,
           context=accelerator(stream=_swallowing)),
    stream("leaving an inner stream leaves all", CONTEXTS, "accelerator.stream.nest", *ORDER,
           members={"stream": _first_restored}),
    stream("without streams one is current", "DeepSpeed interface: streams", "accelerator.stream.none_is_consistent",
           *ORDER, "capabilities.*", claims=NO_STREAMS,
           context=accelerator(Stream=lambda old: property(lambda self: None))),
    stream("all new streams of a device are one", "defect class of stream pools", "accelerator.stream.distinct",
           *ORDER, members={"Stream": _one_for_each_device}),
)  # fmt: skip
