"""Members that answer wrongly in one circumstance: devices, the environment, builders, the compile backend."""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import Enum
from typing import Any

import torch

from conformance.accelerators import capabilities as can
from conformance.accelerators.claims import Capabilities, lacks
from conformance.kernels import builders
from tests.defects.faults import Fault, Where
from tests.defects.mutant import Mutant
from tests.defects.spoiling import accelerator, constant, on_device, replaced, spoiled

NARROW = "DeepSpeed 437226bf2, ac935c7fd: members narrower than the interface"
RANKS = "DeepSpeed 0fc19b6a3, f5c834a6e: indices as strings and numbers"
MIXED = "DeepSpeed 740080c05: accelerators mixed up"
LAUNCH = "DeepSpeed launcher: variables for other ranks"
BUILDERS = "DeepSpeed interface: get_op_builder and create_op_builder"
BACKENDS = "DeepSpeed interface: compile backends"
ON = "DeepSpeed interface: on_accelerator"
NO = "the declaration says so"


def answer(name: str, family: str, precedent: str, caught_by: str, *touch: str,
           claims: Capabilities = frozenset(), **fault: Any) -> Mutant:  # fmt: skip
    return Mutant(Fault(name, family, precedent, Where.DEVICE, caught_by, **fault), touch, claims=claims)


class _Row:
    """How often the same thing was asked of a driver in a row, with no other question in between."""

    def __init__(self, breaks_at: int) -> None:
        self.asked, self._breaks_at = 0, breaks_at

    def again(self) -> bool:
        self.asked += 1
        return self.asked >= self._breaks_at

    def other(self, old: Any) -> Any:
        """A member that is another question."""

        def member(*args: Any, **kwargs: Any) -> Any:
            self.asked = 0
            answer = old(*args, **kwargs)
            self.asked = 0
            return answer

        return member


def _recounting() -> Mapping[str, Any]:
    """Each enumeration in a row finds the devices of the one before it once more."""
    row = _Row(3)
    return {
        "device_count": lambda old: lambda self: old(self) + row.again(),
        **dict.fromkeys(("current_device", "set_device", "device", "device_name", "_index"), row.other),
    }


def _toggling() -> Mapping[str, Any]:
    """Selecting the same device a second time, with nothing in between, selects the next one."""
    row, selected = _Row(2), [-1]

    def selecting(old: Any) -> Any:
        def set_device(self: Any, device_index: int) -> None:
            if device_index != selected[0]:
                row.asked, selected[0] = 0, device_index
            old(self, (device_index + 1) % 2 if row.again() else device_index)

        return set_device

    others = dict.fromkeys(("current_device", "device_name", "synchronize"), row.other)
    return {"set_device": selecting, **others}


def _wrapping_index(old: Any) -> Any:
    def set_device(self: Any, device_index: int) -> None:
        old(self, device_index % self.device_count())

    return set_device


def _on_first(call: Any, args: Any, kwargs: Any) -> Any:
    """What names no index goes to device 0."""
    device = kwargs.get("device")
    if device is not None and torch.device(device) == torch.device("sim"):
        kwargs = {**kwargs, "device": torch.device("sim", 0)}
    return call(*args, **kwargs)


def _stays_there(call: Any, args: Any, kwargs: Any) -> Any:
    """Filling a tensor of another device leaves that one current."""
    result = call(*args, **kwargs)
    if on_device(result) and result.is_floating_point():
        torch.accelerator.set_device_index(result.device.index)
    return result


def _elsewhere_empty(call: Any, args: Any, kwargs: Any) -> Any:
    """The gradient a backward pass starts with is zero on every device but the current one."""
    result = call(*args, **kwargs)
    if on_device(result) and result.device.index != torch.accelerator.current_device_index():
        result.zero_()
    return result


def _last_known_name(old: Any) -> Any:
    def device_name(self: Any, device_index: int | None = None) -> str:
        return str(old(self, device_index if device_index is None else min(device_index, self.device_count() - 1)))

    return device_name


def _host_without_index(old: Any) -> Any:
    return lambda self, device_index=None: torch.device("cpu") if device_index is None else old(self, device_index)


DEVICES = (
    answer("devices are counted anew and once more", "device count lies", RANKS, "accelerator.device.count",
           "capabilities.device", context=accelerator(**_recounting())),
    answer("the device is not available", "device count lies", NARROW, "accelerator.device.available",
           context=accelerator(is_available=constant(False))),
    answer("the device's name is the one before it was renamed", "device count lies", MIXED, "accelerator.device.name",
           "accelerator.device.*", "capabilities.device*",
           context=accelerator(device_name=lambda old: lambda self, device_index=None:
                               old(self, device_index).replace("sim", "privateuseone"))),
    answer("selecting the same device again selects the next", "set_device ignored", RANKS,
           "accelerator.device.current", "capabilities.device", context=accelerator(**_toggling())),
    answer("the count is LOCAL_SIZE's text", "device count lies", "DeepSpeed f5c834a6e: LOCAL_SIZE as a string",
           "accelerator.device.current_under_launcher",
           context=accelerator(device_count=lambda old: lambda self: os.environ.get("LOCAL_SIZE", old(self)))),
    answer("without an index tensors go to device 0", "set_device ignored", "DeepSpeed 047a7599d: indexless devices",
           "accelerator.device.set", "capabilities.device", "accelerator.*",
           context=spoiled(**dict.fromkeys(("empty", "full", "zeros", "ones"), _on_first))),
    answer("indices wrap around", "set_device ignored", "DeepSpeed #5464: two ranks on one card",
           "accelerator.device.out_of_range[*]", context=accelerator(set_device=_wrapping_index)),
    answer("device() is the host", "device count lies", MIXED, "accelerator.device.torch_device",
           context=accelerator(device=_host_without_index)),
    answer("no name goes beyond the last device", "set_device ignored", "DeepSpeed #5464",
           "accelerator.device.name_index", "capabilities.device.index",
           context=accelerator(device_name=_last_known_name)),
    answer("filling a tensor elsewhere makes that device current", "set_device ignored",
           "defect class of device guards", "accelerator.device.tensor_index", "accelerator.*", "capabilities.*",
           context=spoiled(full=_stays_there)),
    answer("backward passes elsewhere begin with zero", "set_device ignored", "defect class of device guards",
           "accelerator.device.works_on_each", context=spoiled(ones_like=_elsewhere_empty)),
    answer("parameters are not on the accelerator", "device count lies", ON,
           "accelerator.on_accelerator.device_tensors",
           context=accelerator(on_accelerator=lambda old: lambda self, tensor:
                               type(tensor) is torch.Tensor and old(self, tensor))),
    answer("what is not on the host is on the accelerator", "device count lies", ON,
           "accelerator.on_accelerator.elsewhere",
           context=accelerator(on_accelerator=lambda old: lambda self, tensor: tensor.device.type != "cpu")),
)  # fmt: skip


def _by_position_in_c(old: Any) -> Any:
    """As a function written in C, which takes no keywords and tells nothing of its arguments."""

    class Native:
        __signature__ = "(...)"

        def __init__(self, owner: Any) -> None:
            self._owner = owner

        def __call__(self, class_name: str, /) -> Any:
            return old(self._owner, class_name)

    return property(Native)


class _Folder(str, Enum):
    """An enumeration of folders, as newer code spells constants."""

    BUILDERS = builders.__name__


def _default_nobody_knows() -> Mapping[str, Any]:
    """The default is registered nowhere; the vendor's own ``set`` takes it all the same."""
    return {
        "get_compile_backend": lambda old: lambda self: self._compile.name or "vendor",
        "set_compile_backend": lambda old: lambda self, backend:
            setattr(self._compile, "name", "") if backend == "vendor" else old(self, backend),
    }  # fmt: skip


def _traced_instead(old: Any) -> Any:
    """Without a compiler functions are to run as they are; they are traced all the same."""
    return lambda self, backend: old(self, "aot_eager" if backend == "eager" else backend)


def _key_error(old: Any) -> Any:
    def set_compile_backend(self: Any, backend: str) -> None:
        try:
            old(self, backend)
        except ValueError:
            raise KeyError(backend) from None

    return set_compile_backend


SOFTWARE = (
    answer("an unknown operator is compatible", "stub", BUILDERS, "accelerator.builders.unknown_name",
           "capabilities.op-builders", context=replaced(builders.NotImplementedBuilder, is_compatible=constant(True))),
    answer("builders written in C take no keywords", "unclean refusal", NARROW, "accelerator.builders.by_keyword",
           context=accelerator(get_op_builder=_by_position_in_c)),
    answer("the variable that limits the devices has dashes", "device count lies", LAUNCH,
           "accelerator.environment.visible_names",
           context=accelerator(visible_devices_envs=lambda old: lambda self: ["SIM-VISIBLE-DEVICES"])),
    answer("the default compile backend is registered nowhere", "over-declared", BACKENDS,
           "accelerator.compile_backend.known", "capabilities.compile",
           context=accelerator(**_default_nobody_knows())),
    answer("another compile backend is set than was asked for", "stub", BACKENDS, "accelerator.compile_backend.set",
           context=accelerator(set_compile_backend=_traced_instead)),
    answer("an unknown compile backend is a KeyError", "unclean refusal", BACKENDS,
           "accelerator.compile_backend.unknown", context=accelerator(set_compile_backend=_key_error)),
)  # fmt: skip


class _Proxy:
    """A generator behind Python's attributes, and no torch.Generator."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generator, name)


INTERFACE = (
    answer("memory_stats names its argument otherwise", "unclean refusal", NARROW,
           "accelerator.interface.member[memory_stats]",
           context=accelerator(memory_stats=lambda old: lambda self, index=None: old(self, index))),
    answer("register_host_memory names its argument otherwise", "unclean refusal", NARROW,
           "accelerator.interface.newer_member[*]",
           context=accelerator(register_host_memory=lambda old: lambda self, pointer, size: old(self, pointer, size))),
    answer("a flag is a number", "wrong type promotion", NARROW, "accelerator.interface.bool[prefer_triton_grouped_mm]",
           context=accelerator(prefer_triton_grouped_mm=constant(0))),
    answer("the alignment of pinned memory is a float", "wrong type promotion", NARROW,
           "accelerator.interface.int[pin_memory_alignment]",
           context=accelerator(pin_memory_alignment=lambda old: lambda self: float(old(self)))),
    answer("the builders' folder is a member of an enumeration", "wrong type promotion", NARROW,
           "accelerator.interface.str[op_builder_dir]", context=accelerator(op_builder_dir=constant(_Folder.BUILDERS))),
    answer("memory_stats holds a name", "memory statistics negative or constant", NARROW, "accelerator.interface.dict",
           context=accelerator(memory_stats=lambda old: lambda self, device_index=None:
                               {**old(self, device_index), "allocator": "native"})),
    answer("without generators of its own it offers a proxy", "wrong type promotion", NARROW,
           "accelerator.interface.rng_state", "capabilities.rng*", claims=lacks(can.RNG_GENERATOR, NO),
           context=accelerator(default_generator=lambda old: lambda self, device_index=None:
                               _Proxy(old(self, device_index)))),
)  # fmt: skip

MUTANTS = (*DEVICES, *SOFTWARE, *INTERFACE)
