"""The collective backend of a face: PyTorch's gloo, which the core hands host views of device memory."""

from __future__ import annotations

from datetime import timedelta
from types import ModuleType
from typing import Any

from conformance.accelerators.simulated.face import Face


def register(face: Face, core: ModuleType) -> None:
    """Make ``init_process_group(<comm>)`` work, for device and host tensors alike."""
    import torch.distributed as dist

    if not face.comm or not dist.is_available() or face.comm in dist.Backend.backend_list:
        return
    core.register_collectives()
    dist.Backend.register_backend(face.comm, _gloo, devices=[face.device, "cpu"])
    # `init_process_group()` without a name picks the backend of the device.
    dist.Backend.default_device_backend_map[face.device] = face.comm


def _gloo(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    # Asked for here and now: who starts many groups may have put one in its place that shares sockets and threads.
    from torch.distributed.distributed_c10d import ProcessGroupGloo

    return ProcessGroupGloo(store, rank, size, timeout=timeout)
