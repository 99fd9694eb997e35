"""Which implementation of a kernel runs, and why: never silently another than was said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Implementation(Enum):
    """Who computes."""

    #: This project's code, compiled for the device.
    NATIVE = "native"
    #: PyTorch's operators on the tensors' own device.
    REFERENCE = "reference"
    #: The device vendor's code, or any builder that is not this project's.
    VENDOR = "vendor"


@dataclass(frozen=True)
class Declared:
    """A capability that an accelerator declares of its type of device, and by which code is compiled for it.

    ``is_there`` is the accelerator's own method, asked when a kernel is loaded: whether this very device has it.
    """

    device_type: str
    capability: str
    is_there: Callable[[], bool]

    def is_of(self, device_type: str, capability: str) -> bool:
        """Whether it is that capability of that type of device."""
        return (self.device_type, self.capability) == (device_type, capability)


@dataclass(frozen=True)
class Choice:
    """One implementation of one kernel, for one type of device and one dtype.

    ``reason`` is a sentence for the report: what computes, and why what would come first does not. ``lacks`` is set
    where something is not installed on this machine that would make it another implementation.
    """

    implementation: Implementation
    reason: str
    function: Callable[..., Any]
    lacks: str = ""


def choice_behind(function: Callable[..., Any]) -> Choice:
    """What a builder's function ran in its last call: this project's own kernels tell, all others are VENDOR."""
    used = getattr(function, "used", None)
    if isinstance(used, Choice):
        return used
    where = getattr(function, "__module__", None) or type(function).__module__
    return Choice(Implementation.VENDOR, f"a function of {where}", function)
