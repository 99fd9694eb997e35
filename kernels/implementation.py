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
class Choice:
    """One implementation of one kernel, for one type of device and one dtype.

    ``reason`` is a sentence for the report: what computes, and why what would come first does not. ``lacks`` is set
    where something is not installed on this machine that would make it another implementation.
    """

    implementation: Implementation
    reason: str
    function: Callable[..., Any]
    lacks: str = ""


def choice_of(function: Callable[..., Any], device_type: str, dtype: str) -> Choice:
    """What a builder's function would run: asked of this project's own kernels, and VENDOR for all others."""
    ask = getattr(function, "choice", None)
    if ask is not None:
        answer = ask(device_type, dtype)
        if isinstance(answer, Choice):
            return answer
    where = getattr(function, "__module__", None) or type(function).__module__
    return Choice(Implementation.VENDOR, f"a function of {where}", function)
