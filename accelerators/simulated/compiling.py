"""torch.compile: inductor writes C++ for the host, and its kernels run on the device's memory, which the host can see.

Importing inductor takes seconds, so the pieces are made when it asks ``torch.<device>`` for them.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from conformance.accelerators.simulated.face import Face

#: What inductor looks up on an out-of-tree device's module.
_HOOKS = ("Scheduling", "PythonWrapperCodegen", "CppWrapperCodegen", "WrapperFxCodegen")


def register(face: Face, module: ModuleType) -> None:
    """Announce the device to dynamo, and let inductor find its code generators on ``module``."""
    vars(module)["__getattr__"] = lambda name: _hook(face, module, name)
    _when_imported("torch._dynamo.device_interface", lambda dynamo: _announce(face, module, dynamo))


def _hook(face: Face, module: ModuleType, name: str) -> Any:
    if name not in _HOOKS:
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
    return _generators(face)[name]


def _when_imported(name: str, then: Callable[[ModuleType], None]) -> None:
    """Run ``then`` on that module now, or as soon as somebody imports it."""
    if name in sys.modules:
        then(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Notice(name, then))


class _Notice(importlib.abc.MetaPathFinder):
    """Finds nothing itself: it lets the others find one module, and acts once that is loaded."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self._name, self._then = name, then

    def find_spec(self, fullname: str, _path: Any, _target: Any = None) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._then)
        return spec


class _Loader(importlib.abc.Loader):
    """A loader that acts after loading."""

    def __init__(self, inner: Any, then: Callable[[ModuleType], None]) -> None:
        self._inner, self._then = inner, then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._inner.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        self._inner.exec_module(module)
        self._then(module)


def _announce(face: Face, module: ModuleType, dynamo: Any) -> None:
    interface = _interface(module, dynamo)
    for name in (face.device, *(f"{face.device}:{index}" for index in range(face.devices))):
        dynamo.register_interface_for_device(name, interface)


def _interface(module: Any, dynamo: Any) -> type:
    """What dynamo asks a device, answered by its module; everything else as for the host."""

    class Worker(dynamo.CpuInterface.Worker):  # type: ignore[misc]
        @staticmethod
        def current_device() -> int:
            return int(module.current_device())

    class Interface(dynamo.CpuInterface):  # type: ignore[misc]
        device = module.device
        Event = module.Event if hasattr(module, "Event") else dynamo.CpuInterface.Event
        Stream = getattr(module, "Stream", None)
        current_device = staticmethod(module.current_device)
        set_device = staticmethod(module.set_device)
        device_count = staticmethod(module.device_count)
        synchronize = staticmethod(module.synchronize)
        exchange_device = staticmethod(module._exchange_device)
        maybe_exchange_device = staticmethod(module._maybe_exchange_device)
        get_device_properties = staticmethod(module.get_device_properties)

        @staticmethod
        def is_triton_capable(_device: Any = None) -> bool:
            return False

    Interface.Worker = Worker
    return Interface


def _generators(face: Face) -> dict[str, Any]:
    import torch
    from torch._inductor import config as inductor_config
    from torch._inductor.codegen import common
    from torch._inductor.codegen.cpp import CppScheduling
    from torch._inductor.codegen.cpp_wrapper_cpu import CppWrapperCpu
    from torch._inductor.codegen.cpu_device_op_overrides import CpuDeviceOpOverrides
    from torch._inductor.codegen.wrapper import PythonWrapperCodegen
    from torch._inductor.codegen.wrapper_fxir import WrapperFxCodegen
    from torch._inductor.scheduler import BaseSchedulerNode

    class Overrides(CpuDeviceOpOverrides):
        """The host's, but memory is allocated on the right device."""

        def set_device(self, device_idx: int) -> str:
            return f"torch.{face.device}.set_device({device_idx})"

        def device_guard(self, device_idx: int) -> str:
            return f"torch.{face.device}.device({device_idx})"

    class Wrapper(PythonWrapperCodegen):
        """Kernels are called as the host's are."""

        @staticmethod
        def create(*args: Any, **kwargs: Any) -> Any:
            made = PythonWrapperCodegen.create(*args, **kwargs)
            return Wrapper() if type(made) is PythonWrapperCodegen else made  # type: ignore[no-untyped-call]

        def make_allocation(self, name: str, device: torch.device, *args: Any, **kwargs: Any) -> str:
            # Inductor drops the index of devices it has no guard for.
            made: str = super().make_allocation(name, device, *args, **kwargs)  # type: ignore[no-untyped-call]
            return made.replace(f"device='{device.type}'", f"device='{device}'")

        def _generate_kernel_call_helper(self, *args: Any, **kwargs: Any) -> Any:
            kwargs["device"] = torch.device("cpu")
            return super()._generate_kernel_call_helper(*args, **kwargs)

    asked = BaseSchedulerNode.is_cpu

    def is_cpu(self: Any) -> bool:
        # Fusion rules for C++ kernels hang on this question, and ours are C++ kernels.
        device = self.get_device()
        return bool(asked(self) or (device is not None and device.type == face.device))

    # Random numbers come from the device's own generators, compiled or not.
    inductor_config.fallback_random = True
    if face.device not in common.device_op_overrides_dict:
        BaseSchedulerNode.is_cpu = is_cpu  # type: ignore[method-assign]
        _name_backend(face, inductor_config)
        common.register_device_op_overrides(face.device, Overrides())
    return {
        "Scheduling": CppScheduling,
        "PythonWrapperCodegen": Wrapper,
        "CppWrapperCodegen": CppWrapperCpu,
        "WrapperFxCodegen": WrapperFxCodegen,
    }


def _name_backend(face: Face, config: Any) -> None:
    """Say that the device's kernels are C++; inductor takes an unknown device's for Triton's."""
    from torch._inductor import utils

    asked = utils.get_current_backend

    def get_current_backend(device_type: str | None = None) -> str:
        from torch._inductor.virtualized import V

        device = device_type or V.graph.get_current_device_or_throw().type
        return str(config.cpu_backend) if device == face.device else asked(device)

    for name, module in list(sys.modules.items()):
        # It is imported by name in several modules.
        if name.startswith("torch._inductor") and getattr(module, "get_current_backend", None) is asked:
            vars(module)["get_current_backend"] = get_current_backend
