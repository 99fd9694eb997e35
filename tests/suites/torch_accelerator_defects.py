"""Public names of ``torch.accelerator``, each broken alone and in several ways."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from tests.defects import bench, forking, measuring
from tests.defects.faults import Fault, Where
from tests.defects.mutant import Mutant
from tests.defects.spoiling import constant, replaced

#: The simulated device's module calls torch.accelerator, so whatever needs the broken name may fail too.
ANYTHING = ("*",)
_OWN = torch.accelerator
Change = Callable[[Any], Any]


def _refusing(name: str) -> Callable[[], AbstractContextManager[Any]]:
    """Return a context in which the device refuses to convert to a dtype that the backend claims."""
    kind = getattr(torch, name)

    def changed(old: Any) -> Any:
        def to(self: torch.Tensor, *given: Any, **named: Any) -> torch.Tensor:
            if self.device.type == "sim" and kind in given:
                raise RuntimeError(f"sim does not support {name}")
            return old(self, *given, **named)

        return to

    return replaced(torch.Tensor, to=changed)


def wrong(name: str, what: str, case: str, change: Change, owner: Any = None, *, refused: str = "") -> Mutant:
    """Return the defect of a name of torch.accelerator; ``owner`` has the attribute, if it is another object."""
    attribute = name.rpartition(".")[2]
    fault = Fault(
        f"torch.accelerator.{name}: {what}",
        "torch.accelerator",
        "torch-spyre #1182: does set_device_index take effect",
        Where.DEVICE,
        f"torch_accelerator.{case}",
        context=_refusing(refused) if refused else replaced(owner or _OWN, **{attribute: change}),
    )
    return Mutant(fault, ANYTHING)


def plus(step: int) -> Change:
    """Return an answer that is wrong by a number."""
    return lambda old: lambda *given, **named: old(*given, **named) + step


def nothing(old: Any) -> Any:
    """Return a function that does nothing."""
    return lambda *given, **named: None


def argument_ignored(old: Any) -> Any:
    """Return a function that always acts on the current device."""
    return lambda *given, **named: old()


def on_device_zero(old: Any) -> Any:
    """Return a function that always acts on device 0."""
    return lambda *given, **named: old(0)


def on_the_other(old: Any) -> Any:
    """Return a function that acts on the other device of two."""

    def act(device: Any = None) -> Any:
        index = device if isinstance(device, int) else torch.device(device).index if device is not None else None
        return old(1 - (torch.empty(0, device="sim").device.index if index is None else index))

    return act


def first_answer(old: Any) -> Any:
    """Return a function that keeps its first answer for each argument."""
    return functools.cache(old)


def numbers_alone(old: Any) -> Any:
    """Return a function that takes a torch.device or a string for the current device."""
    return lambda device=None: old(device if isinstance(device, int) else None)


def scaled(old: Any) -> Any:
    return lambda *given: old(*given) // 1024


def stats_with(change: Callable[[dict[str, Any]], Any]) -> Change:
    """Return memory_stats() with other entries."""

    def changed(old: Any) -> Any:
        def stats(*given: Any) -> Any:
            found = dict(old(*given))
            change(found)
            return found

        return stats

    return changed


class _Kept:
    """Context manager of a device index that does not end as it should."""

    def __init__(self, index: int | None) -> None:
        self.index, self.before = index, -1

    def __enter__(self) -> None:
        if self.index is not None:
            self.before = torch._C._accelerator_exchangeDevice(self.index)

    def __exit__(self, *error: Any) -> Any:
        return None


class _KeptAfterErrors(_Kept):
    def __exit__(self, kind: Any, *error: Any) -> Any:
        if self.index is not None and kind is None:
            torch._C._accelerator_maybeExchangeDevice(self.before)


class _EndsOnZero(_Kept):
    def __exit__(self, *error: Any) -> Any:
        if self.index is not None:
            torch._C._accelerator_maybeExchangeDevice(0)


class _Swallows(_Kept):
    def __exit__(self, *error: Any) -> Any:
        if self.index is not None:
            torch._C._accelerator_maybeExchangeDevice(self.before)
        return True


class _ForNoneToo(_Kept):
    def __init__(self, index: int | None) -> None:
        super().__init__(0 if index is None else index)

    def __exit__(self, *error: Any) -> Any:
        torch._C._accelerator_maybeExchangeDevice(self.before)


def capability_with(add: tuple[str, ...] = (), lose: tuple[str, ...] = ()) -> Change:
    """Return get_device_capability() with dtypes that the device refuses, or without those that it stores."""

    def changed(old: Any) -> Any:
        def capability(device: Any = None, /) -> dict[str, Any]:
            dtypes = set(old(device)["supported_dtypes"])
            dtypes |= {getattr(torch, name) for name in add}
            return {"supported_dtypes": dtypes - {getattr(torch, name) for name in lose}}

        return capability

    return changed


def stale_capability(old: Any) -> Any:
    """Return what PyTorch's cache makes of a backend that has claimed too little at first."""
    kept = {"supported_dtypes": set(old()["supported_dtypes"]) - {torch.complex32}}

    def capability(device: Any = None, /) -> Any:
        return kept

    capability.__wrapped__ = old  # type: ignore[attr-defined]
    return capability


DEVICES = (
    wrong("current_accelerator", "None", "current_accelerator", constant(None)),
    wrong("current_accelerator", "another type", "current_accelerator", constant(torch.device("meta"))),
    wrong("current_accelerator", "with an index", "current_accelerator", constant(torch.device("cpu", 0))),
    wrong("current_accelerator", "a string", "current_accelerator", constant("sim")),
    wrong("current_accelerator", "None if asked for a usable one", "current_accelerator",
          lambda old: lambda check_available=False: None if check_available else old()),
    wrong("is_available", "False", "is_available", constant(False)),
    wrong("is_available", "a number", "is_available", constant(1)),
    wrong("device_count", "one too many", "device_count", plus(1)),
    wrong("device_count", "one too few", "device_count", plus(-1)),
    wrong("device_count", "0", "device_count", constant(0)),
    *(wrong(name, what, f"current[{name}]", change)
      for name in ("current_device_index", "current_device_idx")
      for what, change in (("constant", constant(0)), ("one too many", plus(1)),
                           ("first answer", first_answer), ("the other", lambda old: lambda: 1 - old()))),
    *(wrong(name, what, f"select*[{name}]", change)
      for name in ("set_device_index", "set_device_idx")
      for what, change in (("nothing", nothing), ("device 0", on_device_zero), ("the other", on_the_other),
                           ("answers", lambda old: lambda device: (old(device), 0)[1]),
                           ("strings ignored",
                            lambda old: lambda device: old(-1 if isinstance(device, str) else device)),
                           ("accepts other types", lambda old: lambda device:
                            None if isinstance(device, torch.device) and device.type == "meta" else old(device)))),
    wrong("device_index", "does nothing", "device_index", lambda old: lambda index: old(None)),
    wrong("device_index", "never restores", "device_index", lambda old: _Kept),
    wrong("device_index", "restores without exceptions alone", "device_index_raises", lambda old: _KeptAfterErrors),
    wrong("device_index", "ends on device 0", "device_index", lambda old: _EndsOnZero),
    wrong("device_index", "swallows exceptions", "device_index_raises", lambda old: _Swallows),
    wrong("device_index", "None is device 0", "device_index", lambda old: _ForNoneToo),
    wrong("device_index", "the other device", "device_index*",
          lambda old: lambda index: old(index if index is None else 1 - index)),
)  # fmt: skip

STREAMS = (
    wrong("current_stream", "the default one", "current_stream",
          lambda old: lambda device=None: torch.sim.default_stream(device)),
    wrong("current_stream", "of the current device", "current_stream", argument_ignored),
    wrong("current_stream", "of device 0", "current_stream", on_device_zero),
    wrong("current_stream", "first answer", "current_stream", first_answer),
    wrong("current_stream", "a new one", "current_stream", lambda old: lambda device=None: torch.Stream(device="sim")),
    wrong("set_stream", "nothing", "set_stream", nothing),
    wrong("set_stream", "another one", "set_stream",
          lambda old: lambda stream: old(torch.Stream(device=stream.device))),
    wrong("set_stream", "keeps the device", "set_stream_device",
          lambda old: lambda stream: _on_this_device(old, stream)),
    wrong("synchronize", "nothing", "synchronize*", nothing),
    wrong("synchronize", "the other device", "synchronize*", on_the_other),
    wrong("synchronize", "the current device", "synchronize_away", argument_ignored),
    wrong("synchronize", "device 0", "synchronize*", on_device_zero),
    wrong("synchronize", "numbers alone", "synchronize", lambda old: lambda device=None:
          old(device) if device is None or isinstance(device, int) else None),
    wrong("synchronize", "the current stream alone", "synchronize*",
          lambda old: lambda device=None: torch.accelerator.current_stream(device).synchronize()),
    wrong("synchronize", "makes the device current", "synchronize_away",
          lambda old: lambda device=None: (old(device), device is not None and _OWN.set_device_index(device), None)[2]),
)  # fmt: skip


def _on_this_device(select: Callable[[Any], None], stream: Any) -> None:
    before = torch.empty(0, device="sim").device.index
    select(stream)
    torch._C._accelerator_setDeviceIndex(before)


_COUNTERS = {
    "memory_allocated": "memory", "memory_reserved": "memory",
    "max_memory_allocated": "peak", "max_memory_reserved": "peak",
}  # fmt: skip
_WRONG_COUNTS: tuple[tuple[str, Change], ...] = (
    ("0", constant(0)), ("constant", constant(1 << 30)), ("one too many", plus(1)), ("in KiB", scaled),
    ("first answer", first_answer), ("of device 0", on_device_zero), ("of the current device", argument_ignored),
    ("of the other device", on_the_other), ("None", constant(None)), ("numbers alone", numbers_alone),
)  # fmt: skip
MEMORY = (
    *(wrong(name, what, f"{case}[{name}]", change)
      for name, case in _COUNTERS.items() for what, change in _WRONG_COUNTS),
    wrong("memory_stats", "empty", "memory_stats", constant({})),
    wrong("memory_stats", "of device 0", "memory_stats", on_device_zero),
    wrong("memory_stats", "of the current device", "memory_stats", argument_ignored),
    wrong("memory_stats", "first answer", "memory_stats", first_answer),
    wrong("memory_stats", "all 0", "memory_stats", stats_with(lambda found: found.update(dict.fromkeys(found, 0)))),
    wrong("memory_stats", "freed bytes are missing", "memory_stats",
          stats_with(lambda found: found.update({"allocated_bytes.all.freed": 0}))),
    wrong("memory_stats", "allocations are not counted", "memory_stats",
          stats_with(lambda found: found.update({"allocation.all.allocated": 5}))),
    *(wrong(name, what, name, change)
      for name in ("reset_peak_memory_stats", "reset_accumulated_memory_stats")
      for what, change in (("nothing", nothing), ("device 0", on_device_zero), ("the current device", argument_ignored),
                           ("the other device", on_the_other), ("numbers alone", numbers_alone),
                           ("all devices", lambda old: lambda device=None: (old(0), old(1), None)[2]))),
    wrong("reset_peak_memory_stats", "the sums instead", "reset_peak_memory_stats",
          lambda old: torch.accelerator.reset_accumulated_memory_stats),
    wrong("reset_accumulated_memory_stats", "the peaks too", "reset_accumulated_memory_stats",
          lambda old: lambda device=None: (torch.empty(1 << 22, device="sim:0"), torch.empty(1 << 22, device="sim:1"),
                                           torch._C._accelerator_resetPeakStats(0),
                                           torch._C._accelerator_resetPeakStats(1), old(device))[4]),
    wrong("get_memory_info", "swapped", "get_memory_info", lambda old: lambda *given: old(*given)[::-1]),
    wrong("get_memory_info", "all is free", "get_memory_info", lambda old: lambda *given: (old(*given)[1],) * 2),
    wrong("get_memory_info", "in KiB", "get_memory_info",
          lambda old: lambda *given: tuple(number // 1024 for number in old(*given))),
    wrong("get_memory_info", "one byte too many", "get_memory_info",
          lambda old: lambda *given: (old(*given)[0] + 1, old(*given)[1])),
    wrong("get_memory_info", "of device 0", "get_memory_info", on_device_zero),
    wrong("get_memory_info", "of the current device", "get_memory_info", argument_ignored),
    wrong("get_memory_info", "first answer", "get_memory_info", first_answer),
    wrong("empty_cache", "nothing", "empty_cache", nothing),
    wrong("empty_cache", "answers", "empty_cache", lambda old: lambda: (old(), 0)[1]),
    wrong("empty_cache", "once", "empty_cache", lambda old: functools.cache(old)),
    wrong("empty_host_cache", "nothing", "empty_host_cache", nothing),
    wrong("empty_host_cache", "the device's cache", "empty_host_cache", lambda old: torch.accelerator.empty_cache),
)  # fmt: skip

GRAPHS = (
    wrong("Graph.replay", "nothing", "Graph.*", nothing, _OWN.Graph),
    wrong("Graph.replay", "once", "Graph.replay", lambda old: _once(old), _OWN.Graph),
    wrong("Graph.reset", "nothing", "Graph.reset", nothing, _OWN.Graph),
    wrong("Graph.pool", "constant", "Graph.pool", constant((0, 7)), _OWN.Graph),
    wrong("Graph.pool", "None", "Graph.pool", constant(None), _OWN.Graph),
    wrong("Graph.__enter__", "captures nothing", "Graph.*", nothing, _OWN.Graph),
    wrong("Graph.__exit__", "swallows exceptions", "Graph.raises",
          lambda old: lambda self, *error: (old(self, *error), True)[1], _OWN.Graph),
    wrong("Graph.instantiate", "replays", "Graph.keep", lambda old: lambda self: self.replay(), _OWN.Graph),
    wrong("Graph.capture_begin", "without the pool", "Graph.pool",
          lambda old: lambda self: torch._C._acceleratorGraph.capture_begin(self, capture_error_mode="default"),
          _OWN.Graph),
)  # fmt: skip


def _once(replay: Any) -> Any:
    done = set()

    def act(self: Any) -> None:
        if id(self) not in done:
            done.add(id(self))
            replay(self)

    return act


_STORED = ("float32", "float16", "bfloat16", "float64", "complex64", "complex128", "int8", "int16", "int32", "int64",
           "uint8", "bool", "float8_e4m3fn", "float8_e5m2")  # fmt: skip
CLAIMS = (
    *(wrong("get_device_capability", f"without {name}", f"get_device_capability[{name}]",
            capability_with(lose=(name,)))
      for name in _STORED),
    wrong("get_device_capability", "without uint16", "get_device_capability_of_others",
          capability_with(lose=("uint16",))),
    wrong("get_device_capability", "with qint8", "get_device_capability_of_others",
          capability_with(add=("qint8",))),
    *(wrong("get_device_capability", f"with {name}, which the device refuses", f"get_device_capability[{name}]",
            lambda old: old, refused=name) for name in _STORED),
    wrong("get_device_capability", "kept after a change", "get_device_capability_again", stale_capability),
    wrong("get_device_capability", "empty", "get_device_capability*", constant({})),
    wrong("get_device_capability", "a list", "get_device_capability*",
          lambda old: lambda device=None, /: {"supported_dtypes": list(old(device)["supported_dtypes"])}),
    wrong("get_device_capability", "names", "get_device_capability*",
          lambda old: lambda device=None, /: {"supported_dtypes": set(map(str, old(device)["supported_dtypes"]))}),
    wrong("get_device_capability", "of other types", "get_device_capability_again",
          lambda old: lambda device=None, /: old()),
)  # fmt: skip

MUTANTS = (*DEVICES, *STREAMS, *MEMORY, *GRAPHS, *CLAIMS)


def main(arguments: Sequence[str]) -> int:
    """Run every n-th defect against the cases that must catch it, and print those that no such case catches."""
    forking.prepare()
    healthy = forking.Job(None, bench.select(["torch_accelerator.*"]))
    jobs = [forking.Job(mutant, measuring.naming_cases(mutant)) for mutant in MUTANTS[:: int(arguments[0])]]
    forking.run_all([healthy, *jobs], 1, lambda job: None)
    alive = [job.name for job in jobs if not any(map(bench.is_red, job.verdicts.values()))]
    red = [case for case, verdict in healthy.verdicts.items() if bench.is_red(verdict)]
    print(json.dumps({"defects": len(jobs), "alive": alive, "red when healthy": red}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
