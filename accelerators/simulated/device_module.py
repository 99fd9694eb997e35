"""``torch.<device>`` of the simulated device: the module that PyTorch and DeepSpeed expect of a device."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from conformance.accelerators.simulated.device_profile import DeviceProfile
from conformance.accelerators.simulated.graphs import make_graph_class, make_graph_context

Device = torch.device | int | str | None


@dataclass(frozen=True)
class Properties:
    """Properties of a simulated device, as ``get_device_properties`` returns them."""

    name: str
    total_memory: int
    major: int
    minor: int
    multi_processor_count: int = 1


def make_module(profile: DeviceProfile, core: ModuleType) -> ModuleType:
    """Return the device's module, registered under its name in ``sys.modules``."""
    module = ModuleType(f"torch.{profile.device}", f"{profile.product}, with the interface of PyTorch's devices.")
    parts = (
        _devices(profile, core),
        _streams(profile),
        _memory(profile, core),
        _random(profile, core),
        _precision(profile),
        _lazy(),
    )
    for part in parts:
        vars(module).update(part)
    if profile.graph:
        vars(module).update(_graphs(profile, core))
    for name, dtype in _TENSOR_TYPES.items():
        setattr(module, name, functools.partial(torch.tensor, dtype=dtype, device=profile.device))
    # torch.<device>.random and .memory are modules of their own in PyTorch's devices.
    for name, part in (("random", _random(profile, core)), ("memory", _memory(profile, core))):
        sub = ModuleType(f"{module.__name__}.{name}")
        vars(sub).update(part)
        setattr(module, name, sub)
        sys.modules[sub.__name__] = sub
    sys.modules[module.__name__] = module
    return module


_TENSOR_TYPES = {
    "BFloat16Tensor": torch.bfloat16,
    "ByteTensor": torch.uint8,
    "DoubleTensor": torch.float64,
    "FloatTensor": torch.float32,
    "HalfTensor": torch.float16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
}


def _index(profile: DeviceProfile, device: Device) -> int:
    """Return the index of a device, by default the current one. Errors are those of PyTorch's devices."""
    if device is None:
        return torch.accelerator.current_device_index()
    if isinstance(device, int):
        index = device
    else:
        where = torch.device(device)
        if where.type != profile.device:
            raise ValueError(f"expected a {profile.device} device, got {where}")
        index = torch.accelerator.current_device_index() if where.index is None else where.index
    if not 0 <= index < profile.devices:
        raise RuntimeError(f"{profile.device}: invalid device ordinal {index}; there are {profile.devices} devices")
    return index


def _devices(profile: DeviceProfile, core: ModuleType) -> dict[str, Any]:
    """Return the members about devices."""
    at = functools.partial(_index, profile)

    class device:  # noqa: N801 - PyTorch's spelling
        """Context manager that makes ``device`` current. A negative index changes nothing."""

        def __init__(self, device: Device) -> None:
            self.index = device if isinstance(device, int) and device < 0 else at(device)
            self.before = -1

        def __enter__(self) -> None:
            self.before = torch.accelerator.current_device_index()
            if self.index >= 0:
                torch.accelerator.set_device_index(self.index)

        def __exit__(self, *_: object) -> None:
            torch.accelerator.set_device_index(self.before)

    class device_of(device):  # noqa: N801
        """Context manager that makes the tensor's device current."""

        def __init__(self, tensor: torch.Tensor) -> None:
            super().__init__(tensor.device.index if tensor.device.type == profile.device else -1)

    def get_device_properties(device: Device = None) -> Properties:
        at(device)
        return Properties(profile.product, profile.memory, *profile.generation)

    def synchronize(device: Device = None) -> None:
        torch.accelerator.synchronize(at(device))

    return {
        "device": device,
        "device_of": device_of,
        "is_available": lambda: core.device_count() > 0,
        "device_count": lambda: core.device_count(),
        "current_device": lambda: torch.accelerator.current_device_index(),
        "set_device": lambda device: torch.accelerator.set_device_index(at(device)),
        "synchronize": synchronize,
        "get_device_properties": get_device_properties,
        "get_device_name": lambda device=None: get_device_properties(device).name,
        "get_device_capability": lambda _device=None: profile.generation,
        "_get_device_index": lambda device, *_, **__: at(device),
        "_exchange_device": lambda index: _exchange(index),
        "_maybe_exchange_device": lambda index: _exchange(index),
    }


def _exchange(index: int) -> int:
    """Make the device current and return the one before; a negative index changes nothing."""
    before = torch.accelerator.current_device_index()
    if index >= 0:
        torch.accelerator.set_device_index(index)
    return before


def _streams(profile: DeviceProfile) -> dict[str, Any]:
    """Return the members about streams, or none if the device has no streams."""
    if not profile.streams:
        return {}
    at = functools.partial(_index, profile)

    @contextmanager
    def stream(stream: torch.Stream | None) -> Iterator[None]:
        """Make the stream and its device current inside the context; None changes nothing."""
        if stream is None:
            yield
            return
        device = torch.accelerator.current_device_index()
        before = torch.accelerator.current_stream(stream.device)
        torch.accelerator.set_stream(stream)
        try:
            yield
        finally:
            torch.accelerator.set_stream(before)
            torch.accelerator.set_device_index(device)

    def default_stream(device: Device = None) -> torch.Stream:
        where = torch.device(profile.device, at(device))
        return torch.Stream(stream_id=0, device_index=where.index, device_type=_TYPE_NUMBER)

    return {
        # Subclassing torch.Event breaks its elapsed_time; the classes are PyTorch's own.
        "Stream": torch.Stream,
        "Event": torch.Event,
        "stream": stream,
        "StreamContext": stream,
        "set_stream": lambda stream: torch.accelerator.set_stream(stream),
        "current_stream": lambda device=None: torch.accelerator.current_stream(at(device)),
        "default_stream": default_stream,
    }


_TYPE_NUMBER = 20  # c10::DeviceType::PrivateUse1


def _memory(profile: DeviceProfile, core: ModuleType) -> dict[str, Any]:
    """Return the members about memory. Sizes are bytes."""
    at = functools.partial(_index, profile)
    own = torch.accelerator

    def on(function: Callable[[int], Any]) -> Callable[..., Any]:
        return lambda device=None: function(at(device))

    def host_memory_stats() -> dict[str, int]:
        """Return the bytes of pinned memory: in use, and with the cached ones, in the words of torch.cuda."""
        used, held = core.host_memory()
        return {"active_bytes.current": used, "allocated_bytes.current": held}

    allocated, reserved = on(own.memory_allocated), on(own.memory_reserved)
    peak, peak_reserved, reset = (
        on(own.max_memory_allocated),
        on(own.max_memory_reserved),
        on(own.reset_peak_memory_stats),
    )
    return {
        "empty_cache": lambda: own.empty_cache(),
        "memory_allocated": allocated,
        "max_memory_allocated": peak,
        "memory_reserved": reserved,
        "max_memory_reserved": peak_reserved,
        "memory_cached": reserved,
        "max_memory_cached": peak_reserved,
        "reset_peak_memory_stats": reset,
        "reset_max_memory_allocated": reset,
        "reset_max_memory_cached": reset,
        "reset_accumulated_memory_stats": on(own.reset_accumulated_memory_stats),
        "memory_stats": on(own.memory_stats),
        "mem_get_info": on(own.get_memory_info),
        "host_memory_stats": host_memory_stats,
    }


def _random(profile: DeviceProfile, core: ModuleType) -> dict[str, Any]:
    """Return the members about random numbers, with one generator for each device."""
    at = functools.partial(_index, profile)
    generators = tuple(core.default_generator(index) for index in range(profile.devices))

    def manual_seed_all(seed: int) -> None:
        for generator in generators:
            generator.manual_seed(int(seed))

    def seed() -> int:
        return int(generators[at(None)].seed())

    def get_rng_state(device: Device = None) -> torch.Tensor:
        state: torch.Tensor = generators[at(device)].get_state()
        return state

    def set_rng_state(new_state: torch.Tensor, device: Device = None) -> None:
        # A checkpoint may have been loaded onto the device. Under FakeTensorMode no operator takes a real tensor.
        generators[at(device)].set_state(new_state if new_state.is_cpu else new_state.cpu())

    def set_rng_state_all(states: list[torch.Tensor]) -> None:
        for index, state in enumerate(states):
            set_rng_state(state, index)

    return {
        "default_generators": generators,
        "manual_seed": lambda seed: generators[at(None)].manual_seed(int(seed)) and None,
        "manual_seed_all": manual_seed_all,
        "seed": seed,
        "initial_seed": lambda: int(generators[at(None)].initial_seed()),
        "get_rng_state": get_rng_state,
        "set_rng_state": set_rng_state,
        "get_rng_state_all": lambda: [get_rng_state(index) for index in range(profile.devices)],
        "set_rng_state_all": set_rng_state_all,
    }


def _precision(profile: DeviceProfile) -> dict[str, Any]:
    """Return the members about dtypes of mixed precision. A profile without dtypes supports all."""

    def supports(dtype: str) -> bool:
        return not profile.dtypes or dtype in profile.dtypes

    lower = [getattr(torch, name) for name in ("float16", "bfloat16") if supports(name)]
    return {
        "get_amp_supported_dtype": lambda: [*lower, torch.float32],
        "is_bf16_supported": lambda *_, **__: supports("bfloat16"),
        "amp": ModuleType(f"torch.{profile.device}.amp"),
    }


def _lazy() -> dict[str, Any]:
    """Return the members about lazy initialisation, which this device does not need."""
    # The device is ready as soon as the module exists. Without `_initialized`, activation checkpointing silently
    # does not save the states of the device's generators.
    return {
        "_initialized": True,
        "is_initialized": lambda: True,
        "init": lambda: None,
        "_lazy_init": lambda: None,
        "_lazy_call": lambda callback, **_: callback(),
        "_is_in_bad_fork": lambda: False,
        "is_in_bad_fork": False,
    }


def _graphs(profile: DeviceProfile, core: ModuleType) -> dict[str, Any]:
    """Return the members about graphs, with the class under the profile's name."""
    return {
        profile.graph: make_graph_class(profile, core),
        "graph": make_graph_context(profile),
        "graph_pool_handle": lambda: (0, core.new_pool()),
        "is_current_stream_capturing": lambda: core.is_capturing(),
    }
