"""Vendor package of a simulated device whose module lacks members: importing it registers ``torch.gap``.

``GAP_MEMBERS`` names the members, with commas. ``GAP_HOW`` says what is left of them: nothing, a function that raises
NotImplementedError, or one that returns None. ``GAP_LOOK_UPS`` names a file for the look-ups of members.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable
from types import FrameType, ModuleType
from typing import Any

import torch

from conformance.accelerators.simulated.device_profile import DeviceProfile
from conformance.accelerators.simulated.simulator import start

PROFILE = DeviceProfile(device="gap", comm="gapccl", graph="GapGraph", prefix="GAP", product="Lacks members")
MEMBERS, HOW, LOOK_UPS = "GAP_MEMBERS", "GAP_HOW", "GAP_LOOK_UPS"
#: Modules of the device, beside ``torch.gap`` itself, that show its members too.
_PARTS = ("random", "memory")


def members() -> list[str]:
    """Return the members of ``torch.gap`` that users and PyTorch look up, without the names of the language."""
    return [name for name in vars(torch.gap) if not name.startswith("__")]  # type: ignore[attr-defined]


def _raising(name: str) -> Callable[..., Any]:
    def raises(*_args: Any, **_kwargs: Any) -> Any:
        raise NotImplementedError(f"torch.{PROFILE.device}.{name} is not implemented")

    # A function of its own, as in a module that somebody has written.
    raises.__code__ = raises.__code__.replace(co_name=name)
    return raises


def _silent(_name: str) -> Callable[..., Any]:
    return lambda *_args, **_kwargs: None


#: What is left of a function.
LEFT: dict[str, Callable[[str], Callable[..., Any]]] = {"raises": _raising, "none": _silent}


def can_be_left(name: str) -> bool:
    """Return whether a member is a function or a class: of any other, nothing is left."""
    return callable(getattr(torch.gap, name))  # type: ignore[attr-defined]


def take_away(module: ModuleType, names: Iterable[str], how: str) -> None:
    """Take members away from the device's module and from the modules in it. What is not a function is deleted."""
    homes = [module, *(getattr(module, part) for part in _PARTS if isinstance(getattr(module, part, None), ModuleType))]
    for name in names:
        for home in homes:
            if not hasattr(home, name):
                continue
            if how in LEFT and callable(getattr(home, name)):
                setattr(home, name, LEFT[how](name))
            else:
                delattr(home, name)


def record(module: ModuleType, file: int) -> None:
    """Write each look-up of a member to a file, from Python and from C++: the time, the name, and the calling line."""
    known = frozenset(name for name in vars(module) if not name.startswith("__"))

    class Recording(ModuleType):
        def __getattribute__(self, name: str) -> Any:
            if name in known:
                os.write(file, f"{time.time():.3f}\t{name}\t{_caller()}\n".encode())
            return super().__getattribute__(name)

    for home in (module, *(getattr(module, part) for part in _PARTS)):
        home.__class__ = Recording


def _caller() -> str:
    """Return the innermost line outside of this file and of the accelerator that derives its members from a module."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__", "").startswith("conformance.accelerators."):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""


start(PROFILE.from_environment())
if os.environ.get(MEMBERS):
    take_away(torch.gap, os.environ[MEMBERS].split(","), os.environ.get(HOW, ""))  # type: ignore[attr-defined]
if os.environ.get(LOOK_UPS):
    record(torch.gap, os.open(os.environ[LOOK_UPS], os.O_WRONLY | os.O_CREAT | os.O_APPEND))  # type: ignore[attr-defined]
