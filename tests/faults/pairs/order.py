"""Family T: a wait is missing, an event is early, a query lies, or work runs on another stream."""

from __future__ import annotations

from typing import Any

import torch

from .observing import SIZE, device, everywhere, first, landing, module, written
from .pair import Part

_STREAMS = ("accelerator.pairs.*", "accelerator.stream.*", "accelerator.event.*", "accelerator.synchronize.*",
            "accelerator.pin.*", "accelerator.graph.*", "accelerator.flags.*", "accelerator.laws.*",
            "accelerator.device.copies_between", "utils.placement.non_blocking*", "profiling.time.*")  # fmt: skip
_ANY = ("everywhere", "device 0", "device 1", "default stream", "side streams", "this thread", "other threads")
_PAIR = (*_ANY, "one device", "two devices")
_DEVICE = ("everywhere", "device 0", "device 1", "this thread", "other threads")


def _other(index: int, stream: torch.Stream) -> list[torch.Stream]:
    """Return streams that wait for ``stream``: of its own device, and of the other one."""
    near = torch.Stream(device=device(index)) if stream.stream_id == 0 else module().default_stream(index)
    return [near, torch.Stream(device=device(1 - index))]


def _be_busy(index: int, stream: torch.Stream) -> None:
    with module().stream(stream):
        left = torch.ones(256, 256, device=device(index))
        for _ in range(3):
            left = left @ left


def _read_on(later: torch.Stream, tensor: torch.Tensor) -> float:
    """Read a tensor on a stream, and wait for that stream alone."""
    host = landing()
    with module().stream(later):
        host.copy_(tensor + 1, non_blocking=True)
    later.synchronize()
    return first(host)


def _waits(wait: Any) -> Any:
    def work(index: int, stream: torch.Stream) -> list[float]:
        found = []
        for later in _other(index, stream):
            if later.device_index != index:
                _be_busy(index, stream)
                wait(later, stream)
                # The host waits for the other device alone, which has waited for this one.
                later.record_event().synchronize()
                found.append(float(stream.query()))
                continue
            tensor = written(index, stream)
            wait(later, stream)
            found.append(_read_on(later, tensor))
        return found

    return lambda: everywhere(work)


def _wait_event(later: torch.Stream, stream: torch.Stream) -> None:
    later.wait_event(stream.record_event())


def _host_waits(wait: Any) -> Any:
    def work(index: int, stream: torch.Stream) -> float:
        tensor, host = written(index, stream), landing()
        with module().stream(stream):
            host.copy_(tensor, non_blocking=True)
        wait(index, stream)
        return first(host)

    return lambda: everywhere(work)


def _recorded(stream: torch.Stream) -> torch.Event:
    event = torch.Event(device=stream.device, enable_timing=True)
    event.record(stream)
    return event


def _queries(query: Any) -> Any:
    def work(index: int, stream: torch.Stream) -> bool:
        _be_busy(index, stream)
        return bool(query(stream))

    return lambda: everywhere(work)


def _times(index: int, stream: torch.Stream) -> bool:
    with module().stream(stream):
        before = _recorded(stream)
        torch.ones(SIZE, device=device(index)).mul_(2)
        after = _recorded(stream)
    after.synchronize()
    elapsed = before.elapsed_time(after)
    return 0.0 < elapsed < 1000.0


def _keeps(index: int, stream: torch.Stream) -> float:
    """Free memory that another stream still reads, and give it to a new tensor."""
    side = torch.Stream(device=device(index))
    tensor = torch.full((SIZE,), 3.0, device=device(index))
    side.wait_stream(module().current_stream(index))
    with module().stream(side):
        for _ in range(4):
            torch.ones(256, 256, device=device(index)).mm(torch.ones(256, 256, device=device(index)))
        copy = tensor + 1
    tensor.record_stream(side)
    del tensor
    fresh = torch.full((SIZE,), 9.0, device=device(index))
    side.synchronize()
    value = first(copy.cpu())
    del fresh
    return value


def _to_device(index: int, stream: torch.Stream) -> float:
    host = torch.full((SIZE,), 5.0).pin_memory()
    with module().stream(stream):
        tensor = host.to(device(index), non_blocking=True)
        return first(tensor.cpu())


PARTS = (
    Part("wait_stream ignored", _waits(lambda later, stream: later.wait_stream(stream)), _STREAMS, _PAIR,
         {"stream_wait_ignored": 1}),
    Part("wait_event ignored", _waits(_wait_event), _STREAMS, _PAIR, {"event_wait_ignored": 1}),
    Part("event early", _waits(_wait_event), _STREAMS, _ANY, {"event_records_early": 1}),
    Part("event early for the host", _host_waits(lambda index, stream: stream.record_event().synchronize()), _STREAMS,
         _ANY, {"event_records_early": 1}),
    Part("stream synchronize ignored", _host_waits(lambda index, stream: stream.synchronize()), _STREAMS, _ANY,
         {"stream_sync_ignored": 1}),
    Part("event synchronize ignored", _host_waits(lambda index, stream: stream.record_event().synchronize()), _STREAMS,
         _ANY, {"event_sync_ignored": 1}),
    Part("device synchronize ignored", _host_waits(lambda index, stream: torch.accelerator.synchronize(index)),
         _STREAMS, _DEVICE, {"device_sync_ignored": 1}),
    Part("device synchronize of one stream", _host_waits(lambda index, stream: torch.accelerator.synchronize(index)),
         _STREAMS, _DEVICE, {"device_sync_default_stream": 1}),
    Part("kernels on the default stream", _host_waits(lambda index, stream: stream.synchronize()), _STREAMS,
         ("everywhere", "device 0", "device 1", "this thread", "other threads"), {"launch_on_default_stream": 1}),
    Part("stream query true", _queries(lambda stream: stream.query()), _STREAMS, _ANY, {"stream_query_true": 1}),
    Part("event query true", _queries(lambda stream: _recorded(stream).query()), _STREAMS, _ANY,
         {"event_query_true": 1}),
    Part("elapsed time constant", lambda: everywhere(_times), _STREAMS, _DEVICE, {"event_elapsed_constant": 0}),
    Part("elapsed time in seconds", lambda: everywhere(_times), _STREAMS, ("everywhere", "device 0", "device 1"),
         {"event_elapsed_scale": 1e6}),
    Part("record_stream ignored", lambda: everywhere(_keeps), _STREAMS, ("everywhere", "device 0", "device 1",
         "this thread", "other threads"), {"record_stream_ignored": 1}),
    Part("copy to host late", _host_waits(lambda index, stream: stream.synchronize()), _STREAMS, _ANY,
         {"copy_d2h_never": 1}),
    Part("copy to device early", lambda: everywhere(_to_device), _STREAMS, _ANY, {"copy_h2d_poison": 1}),
)  # fmt: skip
