"""Start of the simulator: registers ``torch.<device>`` in this process."""

from __future__ import annotations

from datetime import timedelta
from types import ModuleType
from typing import Any

import torch
from torch.utils import backend_registration

from conformance.accelerators.simulated.build import load_core
from conformance.accelerators.simulated.device_profile import DeviceProfile
from conformance.base.errors import SetupError

#: PyTorch's name of the out-of-tree device type until a package renames it.
_UNNAMED = "privateuseone"


class Simulator:
    """The running simulator: its C++ core and its device profile. A process has at most one."""

    current: Simulator | None = None

    def __init__(self, profile: DeviceProfile, core: ModuleType) -> None:
        self.profile, self.core = profile, core


def start(profile: DeviceProfile) -> Simulator:
    """Register the device of the profile and return the simulator. A second start with the same profile does nothing.

    Raises SetupError if another accelerator is already PyTorch's out-of-tree device.
    """
    if Simulator.current is not None and Simulator.current.profile == profile:
        return Simulator.current
    taken = torch._C._get_privateuse1_backend_name()
    if taken != _UNNAMED:
        raise SetupError(
            f"accelerator '{profile.device}' cannot be used: '{taken}' is already this process' out-of-tree device.\n"
            "  PyTorch has room for one (PrivateUse1) per process; run each accelerator in its own process"
        )
    simulator = Simulator(profile, load_core())
    simulator.core.configure(_options(profile))
    backend_registration.rename_privateuse1_backend(profile.device)
    _register(simulator)
    Simulator.current = simulator
    return simulator


def started() -> Simulator:
    """Return the simulator of this process; raise SetupError if none was started."""
    if Simulator.current is None:
        raise SetupError("no simulated accelerator was started in this process")
    return Simulator.current


def _options(profile: DeviceProfile) -> dict[str, Any]:
    """Return the profile as the core's options, which are plain values."""
    return {
        "device": profile.device,
        "devices": profile.devices,
        "memory": profile.memory,
        "streams": profile.streams,
        "missing": sorted(profile.missing),
        "dtypes": [getattr(torch, name) for name in profile.dtypes],
    }


def _register(simulator: Simulator) -> None:
    """Register the device's module, tensor methods, collectives and compiler with torch."""
    from conformance.accelerators.simulated import compiling
    from conformance.accelerators.simulated.device_module import make_module

    module = make_module(simulator.profile, simulator.core)
    torch._register_device_module(simulator.profile.device, module)  # type: ignore[no-untyped-call]
    backend_registration.generate_methods_for_privateuse1_backend(for_storage=True)
    _patch_dlpack_device(simulator.profile)
    _register_collectives(simulator.profile, simulator.core)
    compiling.register(simulator.profile, module)
    if simulator.profile.graph:
        simulator.core.register_graphs()


def _register_collectives(profile: DeviceProfile, core: ModuleType) -> None:
    """Register the collective backend: PyTorch's gloo on host views of device memory, for device and host tensors."""
    import torch.distributed as dist

    if not profile.comm or not dist.is_available() or profile.comm in dist.Backend.backend_list:
        return
    core.register_collectives()
    dist.Backend.register_backend(profile.comm, _gloo, devices=[profile.device, "cpu"])
    # `init_process_group()` without a name picks the backend of the device.
    dist.Backend.default_device_backend_map[profile.device] = profile.comm


def _gloo(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    # Imported here: a torch without distributed support has no such class.
    from torch.distributed.distributed_c10d import ProcessGroupGloo

    return ProcessGroupGloo(store, rank, size, timeout=timeout)


def _patch_dlpack_device(profile: DeviceProfile) -> None:
    """Teach ``Tensor.__dlpack_device__`` the device: torch 2.13 compares the renamed type with its old name."""
    from torch.utils.dlpack import DLDeviceType

    known = torch.Tensor.__dlpack_device__

    def dlpack_device(self: torch.Tensor) -> tuple[Any, int]:
        if self.device.type != profile.device:
            return known(self)
        return DLDeviceType.kDLExtDev, self.device.index or 0

    torch.Tensor.__dlpack_device__ = dlpack_device  # type: ignore[method-assign]
