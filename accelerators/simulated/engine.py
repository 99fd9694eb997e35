"""Starts the engine under a face: from then on ``torch.<device>`` exists in this process."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch.utils import backend_registration

from conformance.accelerators.simulated.build import load_core
from conformance.accelerators.simulated.face import Face
from conformance.errors import SetupError

_UNNAMED = "privateuseone"


class Engine:
    """The core and the face it wears; there is one per process."""

    current: Engine | None = None

    def __init__(self, face: Face, core: ModuleType) -> None:
        self.face, self.core = face, core


def start(face: Face) -> Engine:
    """Register the device of ``face``. Starting the same face twice changes nothing.

    Raises SetupError if another accelerator has PyTorch's one place for out-of-tree devices.
    """
    if Engine.current is not None and Engine.current.face == face:
        return Engine.current
    taken = torch._C._get_privateuse1_backend_name()
    if taken != _UNNAMED:
        raise SetupError(
            f"accelerator '{face.device}' cannot be used: '{taken}' is already this process' out-of-tree device.\n"
            "  PyTorch has room for one (PrivateUse1) per process; run them in processes of their own"
        )
    engine = Engine(face, load_core())
    engine.core.configure(_options(face))
    backend_registration.rename_privateuse1_backend(face.device)
    _register(engine)
    Engine.current = engine
    return engine


def started() -> Engine:
    """The engine of this process."""
    if Engine.current is None:
        raise SetupError("no simulated accelerator was started in this process")
    return Engine.current


def _options(face: Face) -> dict[str, Any]:
    return {
        "device": face.device,
        "devices": face.devices,
        "memory": face.memory,
        "streams": face.streams,
        "missing": sorted(face.missing),
        "dtypes": [getattr(torch, name) for name in face.dtypes],
    }


def _register(engine: Engine) -> None:
    from conformance.accelerators.simulated import collectives, compiling
    from conformance.accelerators.simulated.device_module import make_module

    module = make_module(engine.face, engine.core)
    torch._register_device_module(engine.face.device, module)  # type: ignore[no-untyped-call]
    backend_registration.generate_methods_for_privateuse1_backend(for_storage=True)
    _say_where(engine.face)
    collectives.register(engine.face, engine.core)
    compiling.register(engine.face, module)


def _say_where(face: Face) -> None:
    """Let ``__dlpack_device__`` know the device: torch 2.13 compares the renamed type with its old name."""
    from torch.utils.dlpack import DLDeviceType

    known = torch.Tensor.__dlpack_device__

    def dlpack_device(self: torch.Tensor) -> tuple[Any, int]:
        if self.device.type != face.device:
            return known(self)
        return DLDeviceType.kDLExtDev, self.device.index or 0

    torch.Tensor.__dlpack_device__ = dlpack_device  # type: ignore[method-assign]
