"""Collective backend of the simulated device: PyTorch's gloo on host views of device memory."""

from __future__ import annotations

from datetime import timedelta
from types import ModuleType
from typing import Any

from conformance.accelerators.simulated.device_profile import DeviceProfile


def register(profile: DeviceProfile, core: ModuleType) -> None:
    """Register the backend, so that ``init_process_group(<comm>)`` works for device and host tensors."""
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
