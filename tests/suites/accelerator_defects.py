"""Accelerators with one defect each, and the case that must find it."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from conformance.accelerators.registry import resolve

from . import late_device
from .late_device import LateDevice


@dataclass(frozen=True)
class Defect:
    """``make`` builds the defective accelerator; ``case`` must be red with it and green without."""

    name: str
    case: str
    make: Callable[[], Any]
    late: bool = False

    def healthy(self) -> Any:
        return LateDevice() if self.late else resolve("cpu").load()


class Altered:
    """Our CPU accelerator with some members replaced."""

    def __init__(self, **members: Any) -> None:
        self._host = resolve("cpu").load()
        for name, member in members.items():
            setattr(self, name, member)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._host, name)


def constant(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


def _advancing_state(device_index: int | None = None) -> torch.Tensor:
    state = torch.get_rng_state()
    torch.rand(1)
    return state


def _raises(*args: Any, **kwargs: Any) -> None:
    raise RuntimeError("no profiler")


def _touch_environment(current_env: Any, local_accelerator_ids: Any) -> None:
    ids = ",".join(map(str, local_accelerator_ids))
    current_env["CPU_VISIBLE_DEVICES"] = os.environ["CPU_VISIBLE_DEVICES"] = ids


def _unsorted_ids(current_env: Any, local_accelerator_ids: Any) -> None:
    current_env["CPU_VISIBLE_DEVICES"] = ",".join(str(number) for number in sorted(map(int, local_accelerator_ids)))


def _pin_and_clear(tensor: torch.Tensor, make_copy: bool = True, match_shape: bool = True) -> torch.Tensor:
    return torch.zeros_like(tensor)


def _pin_flat(tensor: torch.Tensor, make_copy: bool = True, match_shape: bool = True) -> torch.Tensor:
    return tensor.flatten()


class _Counter:
    """Answers with a GiB more at every call."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, device_index: int | None = None) -> int:
        self.calls += 1
        return self.calls << 30


@contextmanager
def _swallowing(*args: Any, **kwargs: Any) -> Any:
    try:
        yield
    except Exception:
        return


def _lose_index(new_state: torch.Tensor) -> None:
    torch.set_rng_state(new_state)


def on_host(name: str, case: str, **members: Any) -> Defect:
    return Defect(name, case, lambda: Altered(**members))


HOST_DEFECTS = (
    on_host("current_device is a string", "accelerator.device.current", current_device=constant("0")),
    on_host("current_device follows LOCAL_RANK", "accelerator.device.current_under_launcher",
            current_device=lambda: os.environ.get("LOCAL_RANK", 0)),
    on_host("current_device moves", "accelerator.device.unmoved_by_launcher",
            current_device=lambda: int(os.environ.get("LOCAL_RANK", 0))),
    on_host("current_device is stale", "accelerator.device.set", current_device=constant(1)),
    on_host("device_count changes", "accelerator.device.count", device_count=_Counter()),
    on_host("set_device accepts everything", "accelerator.device.out_of_range[count]", set_device=constant(None)),
    on_host("device_name ignores the index", "accelerator.device.name_index", device_name=constant("cpu")),
    on_host("device answers None", "accelerator.device.torch_device", device=constant(None)),
    on_host("device loses the index", "accelerator.device.torch_device_index", device=constant(torch.device("cpu"))),
    on_host("is_available answers None", "accelerator.device.available", is_available=constant(None)),
    on_host("set_rng_state does nothing", "accelerator.rng.state_roundtrip[randn]", set_rng_state=constant(None)),
    on_host("set_rng_state takes no index", "accelerator.rng.state_index", set_rng_state=_lose_index),
    on_host("get_rng_state advances", "accelerator.rng.state_is_a_copy", get_rng_state=_advancing_state),
    on_host("get_rng_state answers None", "accelerator.interface.rng_state", get_rng_state=constant(None)),
    on_host("manual_seed does nothing", "accelerator.rng.seed_repeats[dropout]", manual_seed=constant(None)),
    on_host("manual_seed ignores the seed", "accelerator.rng.seeds_differ[randint]",
            manual_seed=lambda seed: torch.manual_seed(0)),
    on_host("manual_seed_all does nothing", "accelerator.rng.seed_all_repeats", manual_seed_all=constant(None)),
    on_host("initial_seed answers None", "accelerator.rng.initial_seed[1234]", initial_seed=constant(None)),
    on_host("default_generator is another one", "accelerator.generator.default_is_live",
            default_generator=lambda index=None: torch.Generator()),
    on_host("lazy_call drops its callback", "accelerator.lazy_call.runs", lazy_call=constant(None)),
    on_host("lazy_call drops the restore", "accelerator.lazy_call.restores_rng", lazy_call=constant(None)),
    on_host("stream answers None", "accelerator.stream.context_of_none", stream=constant(None)),
    on_host("stream swallows exceptions", "accelerator.stream.context_of_none", stream=_swallowing),
    on_host("a stream is current without streams", "accelerator.stream.none_is_consistent",
            current_stream=constant(object())),
    on_host("neither events nor host timers", "accelerator.event.none_means_host_timers",
            use_host_timers=constant(False)),
    on_host("a flag answers None", "accelerator.flags.answer[resolves_data_dependency]",
            resolves_data_dependency=constant(None)),
    on_host("a flag is not as declared", "accelerator.flags.as_declared[is_synchronized_device]",
            is_synchronized_device=constant(False)),
    on_host("memory answers None", "accelerator.memory.numbers[memory_reserved]", memory_reserved=constant(None)),
    on_host("available memory is constant", "accelerator.memory.available_drops", available_memory=constant(8 << 30)),
    on_host("available memory exceeds the total", "accelerator.memory.total", available_memory=constant(1 << 60)),
    on_host("total memory is in MiB", "accelerator.memory.total", total_memory=constant(16384)),
    on_host("memory is never counted", "accelerator.memory.allocated_follows[65537]", memory_allocated=constant(0)),
    on_host("memory only grows", "accelerator.memory.freed", memory_allocated=_Counter()),
    on_host("is_fp16_supported answers None", "accelerator.interface.bool[is_fp16_supported]",
            is_fp16_supported=constant(None)),
    on_host("a dtype is listed and denied", "accelerator.dtype.supported_agrees[bfloat16]",
            is_bf16_supported=constant(False)),
    on_host("float32 is not listed", "accelerator.dtype.supported_list", supported_dtypes=constant([torch.bfloat16])),
    on_host("lists are shared", "accelerator.interface.list[export_envs]", export_envs=constant([])),
    on_host("a constructor has another dtype", "accelerator.tensor_types.from_list[float16]",
            HalfTensor=torch.FloatTensor),
    on_host("a constructor builds a shape", "accelerator.tensor_types.shapes[int32]",
            IntTensor=lambda values: torch.zeros(len(values), dtype=torch.int32)),
    on_host("is_pinned is always True", "accelerator.pin.pageable_is_not_pinned", is_pinned=constant(True)),
    on_host("is_pinned touches meta tensors", "accelerator.pin.no_data_is_not_pinned",
            is_pinned=lambda tensor: tensor.data_ptr() == -1 or tensor.device.type == "meta"),
    on_host("pin_memory loses values", "accelerator.pin.values", pin_memory=_pin_and_clear),
    on_host("pin_memory loses the shape", "accelerator.pin.values", pin_memory=_pin_flat),
    on_host("pin_memory has too few arguments", "accelerator.interface.newer_member[pin_memory]",
            pin_memory=lambda tensor: tensor),
    on_host("ranges raise", "accelerator.ranges.nest", range_push=_raises),
    on_host("an unmatched pop raises", "accelerator.ranges.pop_without_push", range_pop=_raises),
    on_host("on_accelerator is True for meta", "accelerator.on_accelerator.elsewhere", on_accelerator=constant(True)),
    on_host("on_accelerator is False", "accelerator.on_accelerator.device_tensors", on_accelerator=constant(False)),
    on_host("set_visible_devices_envs touches os.environ", "accelerator.environment.set_visible[several]",
            set_visible_devices_envs=_touch_environment),
    on_host("set_visible_devices_envs sorts", "accelerator.environment.set_visible[reordered]",
            set_visible_devices_envs=_unsorted_ids),
    on_host("an empty prefix exports everything", "accelerator.environment.exports", export_envs=lambda: [""]),
    on_host("no variable limits devices", "accelerator.environment.visible_names", visible_devices_envs=list),
    on_host("an unknown compile backend is accepted", "accelerator.compile_backend.unknown",
            set_compile_backend=constant(None)),
    on_host("the compile backend cannot be set", "accelerator.compile_backend.set", set_compile_backend=constant(None)),
    on_host("get and create disagree", "accelerator.builders.unknown_name", create_op_builder=constant(None)),
    on_host("builders have another argument", "accelerator.interface.member[create_op_builder]",
            create_op_builder=lambda op_name: None),
    on_host("None is replayed", "accelerator.graph.created", replay_graph=lambda graph: graph.replay()),
    on_host("a graph that nothing replays", "accelerator.graph.shape", create_graph=lambda: object()),
    on_host("synchronize takes no index", "accelerator.synchronize.index", synchronize=lambda: None),
)  # fmt: skip


def late(name: str, case: str, **members: Any) -> Defect:
    def make() -> LateDevice:
        device = LateDevice()
        for member, value in members.items():
            setattr(device, member, value.__get__(device) if hasattr(value, "__get__") else value)
        return device

    return Defect(name, case, make, late=True)


def _with_classes(stream: dict[str, Any] | None = None, event: dict[str, Any] | None = None) -> Callable[[], Any]:
    def make() -> LateDevice:
        device = LateDevice()
        kind = type("Stream", (late_device.Stream,), stream or {})

        def new() -> Any:
            device._all.append(kind())
            return device._all[-1]

        device.Stream = new
        device._default.__class__ = kind
        device.Event = type("Event", (device.Event,), event or {})
        return device

    return make


def streamy(name: str, case: str, stream: Any = None, event: Any = None) -> Defect:
    return Defect(name, case, _with_classes(stream, event), late=True)


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
LATE_DEFECTS = (
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

DEFECTS = (*HOST_DEFECTS, *LATE_DEFECTS)


class StringDevice(Altered):
    """Its current device is a string, as DeepSpeed's CPU answers under a launcher. For runs of the whole plugin."""

    capabilities = frozenset({"device", "rng.state", "device.index"})

    def __init__(self) -> None:
        super().__init__(current_device=constant("0"), set_rng_state=_lose_index)
