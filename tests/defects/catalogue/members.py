"""Members of the interface that answer the wrong thing, take the wrong arguments, or act on the wrong object."""

from __future__ import annotations

import os
from typing import Any

import torch

from conformance.accelerators.torch_accelerator import TorchAccelerator
from conformance.kernels import builders
from tests.defects.faults import Fault, Where
from tests.defects.mutant import Mutant
from tests.defects.spoiling import accelerator, constant, replaced

NARROW = "DeepSpeed 437226bf2, ac935c7fd: members narrower than the interface"
BUILDERS = "DeepSpeed's SUPA builders: 62 names promised, 42 of them nowhere"
LAUNCH = "DeepSpeed launcher: variables for other ranks"


def member(name: str, family: str, precedent: str, caught_by: str, *touch: str, **fault: Any) -> Mutant:
    return Mutant(Fault(name, family, precedent, Where.DEVICE, caught_by, **fault), (*touch, "accelerator.effect.*"))


def _sorted_ids(self: Any, current_env: dict[str, str], local_accelerator_ids: Any) -> None:
    ids = ",".join(str(number) for number in sorted(map(int, local_accelerator_ids)))
    for name in self.visible_devices_envs():
        current_env[name] = ids


def _kept_ids(self: Any, current_env: dict[str, str], local_accelerator_ids: Any) -> None:
    """An older value stays."""
    for name in self.visible_devices_envs():
        current_env.setdefault(name, ",".join(map(str, local_accelerator_ids)))


def _leaking_ids(old: Any) -> Any:
    def set_visible_devices_envs(self: Any, current_env: dict[str, str], local_accelerator_ids: Any) -> None:
        old(self, current_env, local_accelerator_ids)
        os.environ.update({name: current_env[name] for name in self.visible_devices_envs()})

    return set_visible_devices_envs


_SHARED = ["SIM"]


def _touching(self: Any, tensor: torch.Tensor) -> bool:
    return tensor.data_ptr() == -1 or tensor.device.type == "meta" or bool(tensor.is_pinned())


def _on_current(self: Any, tensor: torch.Tensor) -> bool:
    return tensor.device == self.device()


def _remembering() -> Any:
    """Answers for the memory of the first tensor that was asked about."""
    seen: dict[str, bool] = {}

    def on_accelerator(self: Any, tensor: torch.Tensor) -> bool:
        return seen.setdefault(str(tuple(tensor.shape)), tensor.device.type == "sim")

    return on_accelerator


def _closes_all(old: Any) -> Any:
    """Pushing an empty message raises, as one profiler's library does."""

    def range_push(self: Any, msg: str, domain: str | None = None, category: str | None = None) -> None:
        if not msg:
            raise ValueError("a range needs a name")
        old(self, msg, domain, category)

    return range_push


PIN = ("accelerator.pin.*", "capabilities.memory.pinned*", "accelerator.interface.*")
RANGES = ("accelerator.ranges.*", "capabilities.ranges")
BUILT = ("accelerator.builders.*", "capabilities.op-builders", "accelerator.interface.*")

ENVIRONMENT = (
    member("an empty prefix exports everything", "device count lies", LAUNCH, "accelerator.environment.exports",
           context=accelerator(export_envs=lambda old: lambda self: [""])),
    member("no variable limits the devices", "device count lies", LAUNCH, "accelerator.environment.visible_names",
           "accelerator.environment.*", context=accelerator(visible_devices_envs=lambda old: lambda self: [])),
    member("visible devices are sorted", "device count lies", LAUNCH, "accelerator.environment.set_visible[reordered]",
           "accelerator.environment.*", context=accelerator(set_visible_devices_envs=lambda old: _sorted_ids)),
    member("visible devices keep their old value", "device count lies", LAUNCH,
           "accelerator.environment.set_visible_by_name",
           context=accelerator(set_visible_devices_envs=lambda old: _kept_ids)),
    member("visible devices leak into this process", "device count lies", LAUNCH,
           "accelerator.environment.set_visible[several]", "accelerator.environment.*",
           context=accelerator(set_visible_devices_envs=_leaking_ids)),
    member("the compile backend cannot be set", "stub", "DeepSpeed interface: compile backends",
           "accelerator.compile_backend.set", "accelerator.compile_backend.*",
           context=accelerator(set_compile_backend=constant(None))),
    member("lists are shared with their callers", "in-place aliasing", "DeepSpeed interface: lists",
           "accelerator.interface.list[export_envs]", context=accelerator(export_envs=constant(_SHARED))),
)  # fmt: skip

ANSWERS = (
    member("the communication backend's name is empty", "stub", "DeepSpeed aa539c6dd", "accelerator.interface.*",
           "capabilities.comm", context=accelerator(communication_backend_name=constant(""))),
    member("the name of the accelerator is empty", "stub", NARROW, "accelerator.interface.str[*]",
           "accelerator.compile_backend.*", "capabilities.compile",
           context=accelerator(get_compile_backend=constant(""))),
    member("memory_stats is None", "stub", NARROW, "accelerator.interface.dict", "accelerator.memory.*",
           "capabilities.memory.*", context=accelerator(memory_stats=constant(None))),
    member("a flag is None", "stub", NARROW, "accelerator.flags.answer[resolves_data_dependency]",
           "accelerator.flags.*", "accelerator.interface.*", "capabilities.execution.*",
           context=accelerator(resolves_data_dependency=constant(None))),
    member("a flag is not as declared", "over-declared", "DeepSpeed 697f945a0: flags of the execution model",
           "accelerator.flags.as_declared[is_synchronized_device]", "accelerator.flags.*", "capabilities.execution.*",
           context=accelerator(is_synchronized_device=constant(True))),
    member("host timers are asked for in spite of events", "over-declared", "DeepSpeed 697f945a0",
           "accelerator.flags.device_timers", "accelerator.flags.*", "capabilities.execution.*",
           "capabilities.event.timing", context=accelerator(use_host_timers=constant(True))),
    member("no stream is current", "stub", NARROW, "accelerator.stream.none_is_consistent", "accelerator.*",
           "capabilities.*", context=accelerator(current_stream=constant(None))),
    member("supports_nvtx_domain is None", "stub", NARROW, "accelerator.interface.range_domain",
           "accelerator.interface.*", context=replaced(TorchAccelerator, supports_nvtx_domain=lambda old: None)),
    member("the current device's name is another's", "device count lies", "DeepSpeed 740080c05: accelerators mixed up",
           "accelerator.device.name", "accelerator.*", "capabilities.*",
           context=accelerator(current_device_name=constant("cpu"))),
    member("stream(None) is None", "stub", NARROW, "accelerator.stream.context_of_none", "accelerator.*",
           "capabilities.*",
           context=accelerator(stream=lambda old: lambda self, stream: None if stream is None else old(self, stream))),
    member("random() is no module", "stub", NARROW, "accelerator.rng.random_module",
           context=accelerator(random=constant(object()))),
    member("device() is a string", "wrong type promotion", "DeepSpeed 0fc19b6a3", "accelerator.device.torch_device",
           "accelerator.device.*", "capabilities.device*",
           context=accelerator(device=lambda old: lambda self, device_index=None: str(old(self, device_index)))),
    member("the device's name is another's", "device count lies", "DeepSpeed 740080c05: accelerators mixed up",
           "accelerator.device.name", "accelerator.*", "capabilities.*",
           context=accelerator(device_name=lambda old: lambda self, device_index=None:
                               "cpu" if device_index is None else old(self, device_index))),
    member("the current device follows LOCAL_RANK", "set_device ignored", "DeepSpeed f5c834a6e: LOCAL_SIZE as a string",
           "accelerator.device.unmoved_by_launcher", "accelerator.device.*",
           context=accelerator(current_device=lambda old: lambda self: int(os.environ.get("LOCAL_RANK", old(self))))),
    member("the current device is LOCAL_RANK's text", "set_device ignored", "DeepSpeed f5c834a6e",
           "accelerator.device.current_under_launcher", "accelerator.device.*",
           context=accelerator(current_device=lambda old: lambda self: os.environ.get("LOCAL_RANK", old(self)))),
    member("on_accelerator knows the current device only", "set_device ignored", "DeepSpeed interface: on_accelerator",
           "accelerator.on_accelerator.every_index", context=accelerator(on_accelerator=lambda old: _on_current)),
    member("on_accelerator remembers", "device count lies", "DeepSpeed interface: on_accelerator",
           "accelerator.on_accelerator.after_moves", "accelerator.on_accelerator.*",
           context=accelerator(on_accelerator=lambda old: _remembering())),
    member("synchronize takes no index", "unclean refusal", NARROW, "accelerator.synchronize.index", "accelerator.*",
           "capabilities.*", context=accelerator(synchronize=lambda old: lambda self: old(self))),
    member("manual_seed makes the same numbers of every seed", "dropout ignoring the seed or p = 0/1", NARROW,
           "accelerator.rng.seeds_differ[*]", "accelerator.rng.*", "accelerator.generator.*", "capabilities.rng*",
           context=accelerator(manual_seed=lambda old: lambda self, seed: old(self, 0))),
    member("lazy_call forgets a restored state", "rng state not restored", "DeepSpeed's activation checkpointing",
           "accelerator.lazy_call.restores_rng", "accelerator.lazy_call.*", "capabilities.lazy-call",
           context=accelerator(lazy_call=lambda old: lambda self, callback: _undone(self, callback))),
)  # fmt: skip


def _undone(self: Any, callback: Any) -> None:
    state = self.get_rng_state()
    callback()
    self.set_rng_state(state)


HOST_MEMORY = (
    member("is_pinned touches tensors without data", "pinned flag false", NARROW,
           "accelerator.pin.no_data_is_not_pinned", *PIN, context=accelerator(is_pinned=lambda old: _touching)),
    member("tensors on the device are pinned", "pinned flag false", NARROW, "accelerator.pin.device_is_not_pinned",
           *PIN, context=accelerator(is_pinned=lambda old: lambda self, tensor:
                               tensor.device.type == "sim" or old(self, tensor))),
    member("pin_memory takes the tensor alone", "unclean refusal", "DeepSpeed 437226bf2: pin_memory's keyword dropped",
           "accelerator.pin.arguments", *PIN,
           context=accelerator(pin_memory=lambda old: lambda self, tensor: old(self, tensor))),
    member("unpin_memory says it did", "pinned flag false", "DeepSpeed 7dfa67aea", "accelerator.pin.unpin", *PIN,
           context=accelerator(unpin_memory=constant(True))),
    member("views of pinned memory are not pinned", "pinned flag false", "DeepSpeed 7dfa67aea", "accelerator.pin.views",
           *PIN, context=accelerator(is_pinned=lambda old: lambda self, tensor:
                                     tensor._base is None and old(self, tensor))),
    member("pin_empty accepts every device", "unclean refusal", NARROW, "accelerator.pin.empty_elsewhere", *PIN,
           context=accelerator(_require_host=constant(None))),
)  # fmt: skip

SOFTWARE = (
    member("empty range names raise", "unclean refusal", "DeepSpeed interface: ranges", "accelerator.ranges.arguments",
           *RANGES, context=accelerator(range_push=_closes_all)),
    member("the builders' folder does not exist", "over-declared", BUILDERS, "accelerator.builders.reachable", *BUILT,
           context=accelerator(op_builder_dir=constant("conformance.nowhere"))),
    member("builders are not found by name", "over-declared", BUILDERS, "accelerator.builders.reachable", *BUILT,
           context=accelerator(get_op_builder=constant(builders.NotImplementedBuilder),
                               create_op_builder=lambda old: lambda self, class_name:
                               builders.NotImplementedBuilder())),
    member("builders take their name by position", "unclean refusal", NARROW, "accelerator.builders.by_keyword", *BUILT,
           context=accelerator(get_op_builder=lambda old: lambda self, name: old(self, name))),
    member("is_compatible() is a number", "wrong type promotion", BUILDERS, "accelerator.builders.compatible_is_bool",
           *BUILT, context=replaced(builders.OpBuilder, is_compatible=constant(1))),
    member("builders load anew each time", "stub", BUILDERS, "accelerator.builders.load_twice",
           context=replaced(builders.OpBuilder, load=lambda old: lambda self, verbose=False: self._build())),
    member("unknown builders load something", "stub", BUILDERS, "accelerator.builders.unknown_loads_nothing", *BUILT,
           context=replaced(builders.NotImplementedBuilder, load=constant(object()))),
    member("a restored generator goes elsewhere", "rng state not restored", "DeepSpeed's activation checkpointing",
           "accelerator.rng.state_odd_sizes[*]", "accelerator.rng.*", "accelerator.generator.*", "capabilities.rng*",
           "accelerator.graph.random_numbers", "accelerator.lazy_call.*",
           context=accelerator(set_rng_state=lambda old: _one_too_far(old))),
)  # fmt: skip


def _one_too_far(old: Any) -> Any:
    def set_rng_state(self: Any, new_state: torch.Tensor, device_index: int | None = None) -> None:
        old(self, new_state, device_index)
        torch.rand(1, device=self.device_name(self.current_device() if device_index is None else device_index))

    return set_rng_state


MUTANTS = (*ENVIRONMENT, *ANSWERS, *HOST_MEMORY, *SOFTWARE)
