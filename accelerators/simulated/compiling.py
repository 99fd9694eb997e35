"""torch.compile on the simulated device: inductor writes C++ for the host, which can read and write device memory.

Importing inductor takes seconds. The code generators are therefore built when inductor looks them up on
``torch.<device>``.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from conformance.accelerators.simulated.device_profile import DeviceProfile

#: Names that inductor looks up on an out-of-tree device's module.
_HOOKS = ("Scheduling", "PythonWrapperCodegen", "CppWrapperCodegen", "WrapperFxCodegen")


def register(profile: DeviceProfile, module: ModuleType) -> None:
    """Register the device with dynamo, and its code generators with inductor through ``module``."""
    vars(module)["__getattr__"] = lambda name: _hook(profile, module, name)
    _when_imported("torch._dynamo.device_interface", lambda dynamo: _announce(profile, module, dynamo))


def _hook(profile: DeviceProfile, module: ModuleType, name: str) -> Any:
    if name not in _HOOKS:
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
    return _generators(profile)[name]


def _when_imported(name: str, then: Callable[[ModuleType], None]) -> None:
    """Call ``then`` with the module of that name now, or as soon as it is imported."""
    if name in sys.modules:
        then(sys.modules[name])
    else:
        sys.meta_path.insert(0, _ImportHook(name, then))


class _ImportHook(importlib.abc.MetaPathFinder):
    """A finder that calls a function after one module is loaded. The other finders find the module."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self._name, self._then = name, then

    def find_spec(self, fullname: str, _path: Any, _target: Any = None) -> ModuleSpec | None:
        """Wrap the loader of the one module, so that the function is called after it."""
        if fullname != self._name:
            return None
        # Removed first: find_spec() below asks all finders again.
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._then)
        return spec


class _Loader(importlib.abc.Loader):
    """A loader that calls a function after loading."""

    def __init__(self, inner: Any, then: Callable[[ModuleType], None]) -> None:
        self._inner, self._then = inner, then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._inner.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        self._inner.exec_module(module)
        self._then(module)


def _announce(profile: DeviceProfile, module: ModuleType, dynamo: Any) -> None:
    interface = _interface(module, dynamo)
    for name in (profile.device, *(f"{profile.device}:{index}" for index in range(profile.devices))):
        dynamo.register_interface_for_device(name, interface)


def _interface(module: Any, dynamo: Any) -> type:
    """Return dynamo's interface to the device: its module answers, and the host's interface everything else."""

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


def _generators(profile: DeviceProfile) -> dict[str, Any]:
    """Return inductor's code generators for the device, made here because they subclass inductor's classes."""
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
        """The host's overrides, with the device guards of the simulated device."""

        def set_device(self, device_idx: int) -> str:
            return f"torch.{profile.device}.set_device({device_idx})"

        def device_guard(self, device_idx: int) -> str:
            return f"torch.{profile.device}.device({device_idx})"

    class Wrapper(PythonWrapperCodegen):
        """A wrapper that calls kernels like kernels of the host."""

        @staticmethod
        def create(*args: Any, **kwargs: Any) -> Any:
            made = PythonWrapperCodegen.create(*args, **kwargs)
            return Wrapper() if type(made) is PythonWrapperCodegen else made  # type: ignore[no-untyped-call]

        def make_allocation(self, name: str, device: torch.device, *args: Any, **kwargs: Any) -> str:
            # Inductor drops the index of a device for which it has no guard.
            made: str = super().make_allocation(name, device, *args, **kwargs)  # type: ignore[no-untyped-call]
            return made.replace(f"device='{device.type}'", f"device='{device}'")

        def _generate_kernel_call_helper(self, *args: Any, **kwargs: Any) -> Any:
            kwargs["device"] = torch.device("cpu")
            return super()._generate_kernel_call_helper(*args, **kwargs)

    original = BaseSchedulerNode.is_cpu

    def is_cpu(self: Any) -> bool:
        # The fusion rules for C++ kernels depend on this answer, and our kernels are C++ kernels.
        device = self.get_device()
        return bool(original(self) or (device is not None and device.type == profile.device))

    # Compiled code draws random numbers from the device's own generators, like code that is not compiled.
    inductor_config.fallback_random = True
    if profile.device not in common.device_op_overrides_dict:
        BaseSchedulerNode.is_cpu = is_cpu  # type: ignore[method-assign]
        _name_backend(profile, inductor_config)
        _index_as_on_host(profile)
        common.register_device_op_overrides(profile.device, Overrides())
    return {
        "Scheduling": CppScheduling,
        "PythonWrapperCodegen": Wrapper,
        "CppWrapperCodegen": CppWrapperCpu,
        "WrapperFxCodegen": WrapperFxCodegen,
    }


def _index_as_on_host(profile: DeviceProfile) -> None:
    """Let reductions that return an index count in the order of dimensions, as C++ kernels of the host do.

    Inductor asks for the type of the device where the code generator matters: for other types than ``cpu``, ``argmax``
    of a transposed tensor counts in the order of memory.
    """
    from torch._inductor import ir, lowering

    original, device_type = lowering._make_reduction_inner, ir.get_device_type

    def type_of_kernels(node: Any) -> str | None:
        found = device_type(node)
        return "cpu" if found == profile.device else found

    def make_reduction_inner(x: Any, *args: Any, **kwargs: Any) -> Any:
        """Return what describes a reduction, made as for a device whose kernels are those of the host."""
        if device_type(x) == profile.device and str(kwargs.get("reduction_type")).startswith("arg"):
            # Behind a view, inductor 2.13 counts right also where it has not computed the input yet: pytorch #197739.
            view = ir.PermuteView(data=x.data, dims=list(range(len(x.get_size()))))
            x = ir.TensorBox(view)
        vars(ir)["get_device_type"] = type_of_kernels
        try:
            return original(x, *args, **kwargs)  # type: ignore[no-untyped-call]
        finally:
            vars(ir)["get_device_type"] = device_type

    vars(lowering)["_make_reduction_inner"] = make_reduction_inner


def _name_backend(profile: DeviceProfile, config: Any) -> None:
    """Tell inductor that the device's kernels are C++. For an unknown device it assumes Triton."""
    from torch._inductor import utils

    original = utils.get_current_backend

    def get_current_backend(device_type: str | None = None) -> str:
        """Return inductor's backend for the device: that of the host."""
        from torch._inductor.virtualized import V

        device = device_type or V.graph.get_current_device_or_throw().type
        return str(config.cpu_backend) if device == profile.device else original(device)

    for name, module in list(sys.modules.items()):
        # Several modules of inductor import the function by name, so each copy is replaced.
        if name.startswith("torch._inductor") and getattr(module, "get_current_backend", None) is original:
            vars(module)["get_current_backend"] = get_current_backend
