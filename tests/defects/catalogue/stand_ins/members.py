"""The CPU accelerator with members that answer wrongly."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import Any

import torch

from conformance.reports.verdict import Reason
from tests.defects.faults import Where
from tests.defects.mutant import Mutant
from tests.defects.stand_ins import HOST, Altered, constant, lose_index, on


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


def host(name: str, case: str, **members: Any) -> Mutant:
    return on(HOST, name, case, Where.DEVICE, broken=lambda: Altered(**members))


MEMBERS: tuple[Mutant, ...] = (
    host("current_device is a string", "accelerator.device.current", current_device=constant("0")),
    host("current_device follows LOCAL_RANK", "accelerator.device.current_under_launcher",
            current_device=lambda: os.environ.get("LOCAL_RANK", 0)),
    host("current_device moves", "accelerator.device.unmoved_by_launcher",
            current_device=lambda: int(os.environ.get("LOCAL_RANK", 0))),
    host("current_device is stale", "accelerator.device.set", current_device=constant(1)),
    host("device_count changes", "accelerator.device.count", device_count=_Counter()),
    host("set_device accepts everything", "accelerator.device.out_of_range[count]", set_device=constant(None)),
    host("device_name ignores the index", "accelerator.device.name_index", device_name=constant("cpu")),
    host("device answers None", "accelerator.device.torch_device", device=constant(None)),
    host("device loses the index", "accelerator.device.torch_device_index", device=constant(torch.device("cpu"))),
    host("is_available answers None", "accelerator.device.available", is_available=constant(None)),
    host("set_rng_state does nothing", "accelerator.rng.state_roundtrip[randn]", set_rng_state=constant(None)),
    host("set_rng_state takes no index", "accelerator.rng.state_index", set_rng_state=lose_index),
    host("get_rng_state advances", "accelerator.rng.state_is_a_copy", get_rng_state=_advancing_state),
    host("get_rng_state answers None", "accelerator.interface.rng_state", get_rng_state=constant(None)),
    host("manual_seed does nothing", "accelerator.rng.seed_repeats[dropout]", manual_seed=constant(None)),
    host("manual_seed ignores the seed", "accelerator.rng.seeds_differ[randint]",
            manual_seed=lambda seed: torch.manual_seed(0)),
    host("manual_seed_all does nothing", "accelerator.rng.seed_all_repeats", manual_seed_all=constant(None)),
    host("initial_seed answers None", "accelerator.rng.initial_seed[1234]", initial_seed=constant(None)),
    host("default_generator is another one", "accelerator.generator.default_is_live",
            default_generator=lambda index=None: torch.Generator()),
    host("lazy_call drops its callback", "accelerator.lazy_call.runs", lazy_call=constant(None)),
    host("lazy_call drops the restore", "accelerator.lazy_call.restores_rng", lazy_call=constant(None)),
    host("stream answers None", "accelerator.stream.context_of_none", stream=constant(None)),
    host("stream swallows exceptions", "accelerator.stream.context_of_none", stream=_swallowing),
    host("a stream is current without streams", "accelerator.stream.none_is_consistent",
            current_stream=constant(object())),
    host("neither events nor host timers", "accelerator.event.none_means_host_timers",
            use_host_timers=constant(False)),
    host("a flag answers None", "accelerator.flags.answer[resolves_data_dependency]",
            resolves_data_dependency=constant(None)),
    host("a flag is not as declared", "accelerator.flags.as_declared[is_synchronized_device]",
            is_synchronized_device=constant(False)),
    host("memory answers None", "accelerator.memory.numbers[memory_reserved]", memory_reserved=constant(None)),
    host("available memory is constant", "accelerator.memory.available_drops", available_memory=constant(8 << 30)),
    host("available memory exceeds the total", "accelerator.memory.total", available_memory=constant(1 << 60)),
    host("total memory is in MiB", "accelerator.memory.total", total_memory=constant(16384)),
    host("memory is never counted", "accelerator.memory.allocated_follows[65537]", memory_allocated=constant(0)),
    host("memory only grows", "accelerator.memory.freed", memory_allocated=_Counter()),
    host("is_fp16_supported answers None", "accelerator.interface.bool[is_fp16_supported]",
            is_fp16_supported=constant(None)),
    host("a dtype is listed and denied", "accelerator.dtype.supported_agrees[bfloat16]",
            is_bf16_supported=constant(False)),
    host("float32 is not listed", "accelerator.dtype.supported_list", supported_dtypes=constant([torch.bfloat16])),
    host("lists are shared", "accelerator.interface.list[export_envs]", export_envs=constant([])),
    host("a constructor has another dtype", "accelerator.tensor_types.from_list[float16]",
            HalfTensor=torch.FloatTensor),
    host("a constructor builds a shape", "accelerator.tensor_types.shapes[int32]",
            IntTensor=lambda values: torch.zeros(len(values), dtype=torch.int32)),
    host("is_pinned is always True", "accelerator.pin.pageable_is_not_pinned", is_pinned=constant(True)),
    host("is_pinned touches meta tensors", "accelerator.pin.no_data_is_not_pinned",
            is_pinned=lambda tensor: tensor.data_ptr() == -1 or tensor.device.type == "meta"),
    host("pin_memory loses values", "accelerator.pin.values", pin_memory=_pin_and_clear),
    host("pin_memory loses the shape", "accelerator.pin.values", pin_memory=_pin_flat),
    host("pin_memory has too few arguments", "accelerator.interface.newer_member[pin_memory]",
            pin_memory=lambda tensor: tensor),
    host("ranges raise", "accelerator.ranges.nest", range_push=_raises),
    host("an unmatched pop raises", "accelerator.ranges.pop_without_push", range_pop=_raises),
    host("on_accelerator is True for meta", "accelerator.on_accelerator.elsewhere", on_accelerator=constant(True)),
    host("on_accelerator is False", "accelerator.on_accelerator.device_tensors", on_accelerator=constant(False)),
    host("set_visible_devices_envs touches os.environ", "accelerator.environment.set_visible[several]",
            set_visible_devices_envs=_touch_environment),
    host("set_visible_devices_envs sorts", "accelerator.environment.set_visible[reordered]",
            set_visible_devices_envs=_unsorted_ids),
    host("an empty prefix exports everything", "accelerator.environment.exports", export_envs=lambda: [""]),
    host("no variable limits devices", "accelerator.environment.visible_names", visible_devices_envs=list),
    host("an unknown compile backend is accepted", "accelerator.compile_backend.unknown",
            set_compile_backend=constant(None)),
    host("the compile backend cannot be set", "accelerator.compile_backend.set", set_compile_backend=constant(None)),
    host("get and create disagree", "accelerator.builders.unknown_name", create_op_builder=constant(None)),
    host("builders have another argument", "accelerator.interface.member[create_op_builder]",
            create_op_builder=lambda op_name: None),
    host("None is replayed", "accelerator.graph.created", replay_graph=lambda graph: graph.replay()),
    host("a graph that nothing replays", "accelerator.graph.shape", create_graph=lambda: object()),
    host("synchronize takes no index", "accelerator.synchronize.index", synchronize=lambda: None),
)  # fmt: skip


def _replayed(graph: Any) -> None:
    raise AssertionError("replayed None")


def pretends(case: str, **members: Any) -> Mutant:
    """A CPU accelerator whose members say that it has a capability; the capability's probe must see that it has not."""
    title = f"pretends: {', '.join(members)}"
    return on(HOST, title, case, Where.DECLARATION, broken=lambda: Altered(**members), reason=Reason.WRONG)


PRETENDERS = (
    pretends("capabilities.stream", current_stream=constant(object())),
    pretends("capabilities.graph.capture", replay_graph=_replayed),
    pretends("capabilities.memory.pinned", is_pinned=constant(True)),
    pretends("capabilities.memory.stats", memory_stats=constant({"allocated_bytes.all.current": 5})),
    pretends("capabilities.execution.ordered", resolves_data_dependency=constant(None)),
)

MUTANTS = (*MEMBERS, *PRETENDERS)
