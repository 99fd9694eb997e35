"""Defects that one probe of area ``capabilities`` sees alone. Other areas look closer and may see them, too."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from tests.defects.faults import Fault, Where
from tests.defects.mutant import Mutant
from tests.defects.spoiling import Call, accelerator, on_device, result_of, spoiled

EVERYWHERE = ("accelerator.*", "utils.*", "profiling.*")
COPIES = "defect class of copy engines"
REUSE = "DeepSpeed 56005d2b2: uninitialised memory"
ORDER = "DeepSpeed be60451f6: gradients reduced behind default_stream instead of the stream that computed them"
SYNC = "DeepSpeed 7dfa67aea: offload read before a sync"


def probe(name: str, family: str, precedent: str, where: Where, caught_by: str, *touch: str, **fault: Any) -> Mutant:
    return Mutant(Fault(name, family, precedent, where, caught_by, **fault), (*EVERYWHERE, *touch))


class _SameSize:
    """A tensor of the shape of one that lives gets its memory."""

    def __init__(self) -> None:
        self._last: Any = None

    def full(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = call(*args, **kwargs)
        if on_device(result) and result.dtype is torch.float32 and result.dim() == 1:
            before = self._last() if self._last else None
            if before is not None and before.shape == result.shape:
                before.copy_(result)
            self._last = weakref.ref(result)
        return result


def _whole_tiles(result: torch.Tensor, args: tuple[Any, ...]) -> None:
    """Vectors beyond 4096 numbers are copied in tiles of 64; the rest stays behind."""
    rest = result.numel() % 64
    large = result.numel() > 4096 and rest and result.dim() == 1
    if args[0].device.type == "cpu" and result.dtype is torch.float32 and large:
        result[-rest:] = 0


def _draws_twice(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Drawing with a generator of one's own draws from the default one as well."""
    result = call(*args, **kwargs)
    if kwargs.get("generator") is not None and on_device(result):
        call(*args, **{**kwargs, "generator": None})
    return result


class _Passing(torch.Stream):
    """Waits for the default stream only."""

    def wait_stream(self, stream: Any) -> None:
        if stream.stream_id == 0:
            super().wait_stream(stream)


def _never_done(old: Any) -> Any:
    """Events without timing are waited for, and never say that they are complete."""

    class Event(torch.Event):
        def query(self) -> bool:
            return False

    def make(*args: Any, enable_timing: bool = False, **kwargs: Any) -> torch.Event:
        return (torch.Event if enable_timing else Event)(*args, enable_timing=enable_timing, **kwargs)

    return make


class _Known(torch.Stream):
    """A stream that can be forgotten."""


class _FirstLeftOut:
    """synchronize() goes through the busy side streams from the second one on."""

    def __init__(self) -> None:
        self._made: list[Any] = []

    def stream(self, old: Any) -> Any:
        def make(owner: Any) -> Any:
            def one(*args: Any, **kwargs: Any) -> Any:
                stream = _Known(*args, **({"device": "sim"} | kwargs))
                self._made.append(weakref.ref(stream))
                return stream

            return one

        return property(make)

    def synchronize(self, old: Any) -> Any:
        def member(owner: Any, device_index: int | None = None) -> None:
            alive = [stream for stream in (one() for one in self._made) if stream is not None]
            for stream in [stream for stream in alive if not stream.query()][1:]:
                stream.synchronize()
            owner.default_stream(device_index).synchronize()

        return member


def _no_pools(old: Any) -> Any:
    def capture_to_graph(self: Any, graph: Any, pool: Any = None, stream: Any = None) -> Any:
        if pool is not None:
            raise NotImplementedError("graphs cannot share memory")
        return old(self, graph, pool, stream)

    return capture_to_graph


_SAME, _LEFT = _SameSize(), _FirstLeftOut()
MUTANTS = (
    probe("a vector gets the memory of one of its size", "in-place aliasing", REUSE, Where.ALLOCATOR,
          "capabilities.memory", context=spoiled(full=_SAME.full)),
    probe("float32 beyond 4096 numbers is copied in tiles of 64", "last tile not computed", COPIES, Where.COPY,
          "capabilities.copy", "capabilities.dtype[*]", "capabilities.device.multiple",
          context=spoiled(_to_copy=result_of(_whole_tiles))),
    probe("a generator of one's own draws from the default one, too", "generator shared between devices",
          "DeepSpeed's activation checkpointing", Where.RNG, "capabilities.rng.generator",
          context=spoiled(randn=_draws_twice)),
    probe("side streams do not wait for each other", "stream order ignored", ORDER, Where.STREAM,
          "capabilities.stream.order", members={"Stream": lambda old: _Passing}),
    probe("an event without timing is never complete", "event time without work", "defect class of event queries",
          Where.STREAM, "capabilities.event", members={"Event": _never_done}),
    probe("synchronize() leaves out the first busy stream", "stale or missing sync", SYNC, Where.STREAM,
          "capabilities.synchronize", context=accelerator(Stream=_LEFT.stream, synchronize=_LEFT.synchronize)),
    probe("graphs share no pool", "graphs", "DeepSpeed #8208", Where.GRAPH, "capabilities.graph.pool",
          context=accelerator(capture_to_graph=_no_pools)),
)  # fmt: skip
