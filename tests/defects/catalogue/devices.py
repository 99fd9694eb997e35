"""The device set, graphs, and the software around the device: builders, ranges, profiler, compiler, collectives."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import torch

from tests.defects.faults import Fault, Where
from tests.defects.mutant import Mutant
from tests.defects.spoiling import accelerator, constant, constructors, replaced

EVERYTHING = ("accelerator.*", "capabilities.*", "utils.*", "profiling.*")
INTERFACE = ("accelerator.interface.*", "accelerator.device.*", "capabilities.device*")


def device(name: str, family: str, precedent: str, caught_by: str, *touch: str, where: Where = Where.DEVICE,
           also_run: tuple[str, ...] = (), peer_misses: bool = False, **fault: Any) -> Mutant:  # fmt: skip
    return Mutant(Fault(name, family, precedent, where, caught_by, **fault), touch, also_run, peer_misses=peer_misses)


def graph(name: str, precedent: str, caught_by: str, *touch: str, **fault: Any) -> Mutant:
    what = Fault(name, "graphs", precedent, Where.GRAPH, caught_by, **fault)
    return Mutant(what, ("accelerator.graph.*", "capabilities.graph.*", *touch))


def _counting() -> Any:
    calls = iter(range(2, 1 << 30))
    return lambda *args, **kwargs: next(calls)


class _Stuck:
    """A graph context that leaves its stream current."""

    def __init__(self, inner: Any, *args: Any, **kwargs: Any) -> None:
        self._inner = inner(*args, **kwargs)

    def __enter__(self) -> None:
        self._inner.__enter__()
        self._stream = torch.accelerator.current_stream()

    def __exit__(self, *error: Any) -> None:
        self._inner.__exit__(*error)
        torch.accelerator.set_stream(self._stream)


@contextmanager
def _raising(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("no profiler")
    yield


def _raises(self: Any, *args: Any, **kwargs: Any) -> None:
    raise RuntimeError("no profiler is attached")


def _without_device(old: Any) -> Any:
    """torch.profiler.profile that leaves the device's activity out."""
    from torch.profiler import ProfilerActivity

    return lambda *args, activities=None, **kwargs: old(*args, activities=[ProfilerActivity.CPU], **kwargs)


def _compiled_badly(old: Any) -> Any:
    def compile(function: Any, *args: Any, **kwargs: Any) -> Any:
        made = old(function, *args, **kwargs)
        return lambda *given: made(*given) + 1

    return compile


def _backwards_compiled(old: Any) -> Any:
    def compile(function: Any, *args: Any, **kwargs: Any) -> Any:
        made = old(function, *args, **kwargs)
        return lambda *given: made(*given).detach().requires_grad_()

    return compile


MANGO = "DeepSpeed 0fc19b6a3, f5c834a6e: indices as strings and numbers"
DEVICES = (
    device("device_count is false", "device count lies", "seen missed by a peer suite", "accelerator.device.set",
           *EVERYTHING, switches={"device_count": 5}, peer_misses=True),
    device("device_count is one too small", "device count lies", "DeepSpeed #5464: two ranks on one card",
           "accelerator.selection.other_process", *EVERYTHING, also_run=("accelerator.selection.other_process",),
           context=accelerator(device_count=constant(1))),
    device("device_count changes", "device count lies", MANGO, "accelerator.device.count", *EVERYTHING,
           context=accelerator(device_count=lambda old: _counting())),
    device("set_device changes nothing", "set_device ignored", MANGO, "accelerator.device.set", *EVERYTHING,
           switches={"device_set_ignored": 1}),
    device("set_device accepts everything", "set_device ignored", MANGO, "accelerator.device.out_of_range[*]",
           *INTERFACE,
           context=accelerator(set_device=lambda old: lambda self, index: index < 2 and old(self, index))),
    device("current_device is a string", "set_device ignored", "DeepSpeed 0fc19b6a3", "accelerator.device.current",
           *EVERYTHING, context=accelerator(current_device=lambda old: lambda self: str(old(self)))),
    device("current_device is stale", "set_device ignored", "DeepSpeed f5c834a6e", "accelerator.device.set",
           *EVERYTHING, context=accelerator(current_device=constant(0))),
    device("device_name ignores the index", "set_device ignored", "DeepSpeed #5464", "accelerator.device.name_index",
           *EVERYTHING, context=accelerator(device_name=lambda old: lambda self, device_index=None: old(self))),
    device("device() loses the index", "set_device ignored", "DeepSpeed 047a7599d: indexless devices",
           "accelerator.device.torch_device_index", *INTERFACE,
           context=accelerator(device=lambda old: lambda self, device_index=None: torch.device(self.device_name()))),
    device("the current device's name loses the index", "set_device ignored", "DeepSpeed 047a7599d",
           "accelerator.device.current_name_index", *INTERFACE,
           context=accelerator(current_device_name=lambda old: lambda self: self.device_name())),
    device("is_available is None", "device count lies", "DeepSpeed 437226bf2", "accelerator.device.available",
           *INTERFACE, context=accelerator(is_available=constant(None))),
    device("nothing is on the accelerator", "device count lies", "DeepSpeed interface: on_accelerator",
           "accelerator.on_accelerator.device_tensors", "accelerator.on_accelerator.*",
           context=accelerator(on_accelerator=constant(False))),
    device("everything is on the accelerator", "device count lies", "DeepSpeed interface: on_accelerator",
           "accelerator.on_accelerator.elsewhere", "accelerator.on_accelerator.*",
           context=accelerator(on_accelerator=constant(True))),
    device("16-bit support is None", "wrong type promotion", "DeepSpeed 437226bf2",
           "accelerator.dtype.supported_agrees[bfloat16]", "accelerator.interface.bool*",
           context=accelerator(is_bf16_supported=constant(None))),
    device("supported_dtypes is short", "under-declared", "DeepSpeed: bf16 by name of the device",
           "accelerator.dtype.supported_list", *EVERYTHING,
           context=accelerator(supported_dtypes=constant([torch.bfloat16]))),
    device("constructors build shapes", "wrong type promotion", "DeepSpeed interface: typed constructors",
           "accelerator.tensor_types.from_list[*]", "accelerator.tensor_types.*", "capabilities.tensor-types",
           context=constructors(lambda old: lambda self, dtype: lambda values=(): torch.zeros(
               len(values), dtype=getattr(torch, dtype), device="sim"))),
    device("constructors make host tensors", "host fallback", "DeepSpeed interface: typed constructors",
           "accelerator.tensor_types.from_list[*]", "accelerator.tensor_types.*", "capabilities.tensor-types",
           context=constructors(lambda old: lambda self, dtype: lambda *values: torch.tensor(
               *values, dtype=getattr(torch, dtype)))),
)  # fmt: skip

GRAPHS = (
    graph("capturing runs the work", "DeepSpeed #8208", "accelerator.graph.capture_runs_nothing",
          switches={"graph_capture_executes": 1}),
    graph("replaying does nothing", "DeepSpeed #8208: create_graph without an answer",
          "accelerator.graph.replay_is_idempotent", switches={"graph_replay_nothing": 1}),
    graph("a graph is replayed once", "DeepSpeed #8208", "accelerator.graph.replay_accumulates",
          switches={"graph_replay_once": 1}),
    graph("replays use the inputs of the capture", "DeepSpeed #8208", "accelerator.graph.replay_reads_inputs",
          switches={"graph_replay_stale": 1}),
    graph("nothing tells that it captures", "DeepSpeed interface: graphs", "accelerator.graph.capturing_flag",
          members={"is_current_stream_capturing": constant(False)}),
    graph("it always captures", "DeepSpeed interface: graphs", "accelerator.graph.not_capturing",
          members={"is_current_stream_capturing": constant(True)}),
    graph("no graph, but a replay", "DeepSpeed #8208", "accelerator.graph.shape",
          context=accelerator(create_graph=constant(None))),
    graph("capturing leaves its stream current", "DeepSpeed be60451f6", "accelerator.graph.stream", "accelerator.*",
          "capabilities.*", members={"graph": lambda old: lambda *args, **kwargs: _Stuck(old, *args, **kwargs)}),
    graph("all graphs are one", "DeepSpeed interface: graphs", "accelerator.graph.two_graphs",
          context=accelerator(create_graph=lambda old: _one_graph(old))),
)  # fmt: skip


def _one_graph(old: Any) -> Any:
    made: list[Any] = []

    def create_graph(self: Any) -> Any:
        if not made:
            made.append(old(self))
        return made[0]

    return create_graph


SOFTWARE = (
    device("ranges raise", "unclean refusal", "DeepSpeed interface: ranges", "accelerator.ranges.nest",
           "accelerator.ranges.*", "capabilities.ranges", "utils.ranges.*", "profiling.profiler.ranges",
           also_run=("utils.ranges.*",), context=accelerator(range_push=lambda old: _raises)),
    device("an unmatched range raises", "unclean refusal", "DeepSpeed interface: ranges",
           "accelerator.ranges.pop_without_push", "accelerator.ranges.*", "capabilities.ranges",
           context=accelerator(range_pop=lambda old: _strict_pop(old))),
    device("the profiler sees no device time", "event time without work", "defect class of profiler plugins",
           "profiling.profiler.device_time", "capabilities.profiler", "profiling.profiler.*",
           also_run=("profiling.profiler.*",), context=replaced(torch.profiler, profile=_without_device)),
    device("compiled functions are wrong", "compiled code", "DeepSpeed 3e486febf: DeepCompile", "capabilities.compile",
           "accelerator.compile_backend.*", context=replaced(torch, compile=_compiled_badly)),
    device("compiled functions have no gradient", "compiled code", "DeepSpeed 3e486febf: gradient lifetimes",
           "capabilities.compile", "accelerator.compile_backend.*",
           context=replaced(torch, compile=_backwards_compiled)),
    device("the compile backend is unknown", "over-declared", "DeepSpeed interface: compile backends",
           "accelerator.compile_backend.known", "capabilities.compile", "accelerator.compile_backend.*",
           context=accelerator(get_compile_backend=constant("nonesuch"))),
    device("unknown compile backends are accepted", "unclean refusal", "DeepSpeed interface: compile backends",
           "accelerator.compile_backend.unknown", "accelerator.compile_backend.*",
           context=accelerator(set_compile_backend=lambda old: lambda self, backend: None)),
    device("a reduction over one rank doubles", "all-reduce missing a rank, average without division, wrong op for max",
           "DeepSpeed 5999fb069: gradients not averaged", "capabilities.comm", where=Where.COLLECTIVE,
           operators={"c10d::allreduce_": lambda call, args: _doubled(call, args)}),
    device("the collective backend is unknown", "over-declared",
           "DeepSpeed aa539c6dd: device_id broke init_process_group", "capabilities.comm", "accelerator.interface.*",
           where=Where.COLLECTIVE, context=accelerator(communication_backend_name=constant("nonesuch"))),
    device("builders disagree", "stub", "DeepSpeed interface: get_op_builder and create_op_builder",
           "accelerator.builders.unknown_name", "accelerator.builders.*", "capabilities.op-builders",
           context=accelerator(create_op_builder=constant(None))),
)  # fmt: skip


def _strict_pop(old: Any) -> Any:
    def range_pop(self: Any, domain: str | None = None) -> None:
        if not getattr(self, "_depth", 0):
            raise RuntimeError("there is no range to pop")
        old(self)

    return range_pop


def _doubled(call: Any, args: list[Any]) -> Any:
    results = call(args)
    for tensor in args[0]:
        tensor.mul_(2)
    return results


MUTANTS = (*DEVICES, *GRAPHS, *SOFTWARE)
