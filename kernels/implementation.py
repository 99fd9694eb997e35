"""Implementations of a kernel: which one runs, and the reason that the report gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Implementation(Enum):
    """Origin of the code that computes a kernel."""

    #: This project's code, compiled for the device.
    NATIVE = "native"
    #: PyTorch's operators on the tensors' own device.
    REFERENCE = "reference"
    #: The device vendor's code, or any builder that is not this project's.
    VENDOR = "vendor"


@dataclass(frozen=True)
class Declared:
    """Capability that an accelerator declares, and that makes kernels available on its device type.

    ``is_there`` is the accelerator's own method. It is called when a kernel is loaded, and returns whether this device
    has the capability: not every device of a type does.
    """

    device_type: str
    capability: str
    is_there: Callable[[], bool]

    def is_of(self, device_type: str, capability: str) -> bool:
        """Return whether this is the given capability of the given device type."""
        return (self.device_type, self.capability) == (device_type, capability)


@dataclass(frozen=True)
class Choice:
    """Chosen implementation of one kernel, for one device type and one dtype.

    ``reason`` is for the report: it names the implementation, and says why each preferred one was not chosen. ``lacks``
    names the packages or compilers whose absence on this machine excluded a preferred implementation; else it is empty.
    """

    implementation: Implementation
    reason: str
    function: Callable[..., Any]
    lacks: str = ""


def choice_behind(function: Callable[..., Any]) -> Choice:
    """Return the implementation that ran the last call of a builder's function.

    Kernels of this project record it; every other function counts as VENDOR.
    """
    used = getattr(function, "used", None)
    if isinstance(used, Choice):
        return used
    where = getattr(function, "__module__", None) or type(function).__module__
    return Choice(Implementation.VENDOR, f"a function of {where}", function)
