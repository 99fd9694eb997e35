"""Vendor package of a simulated device whose module lacks members: importing it registers ``torch.gap``.

``GAP_MEMBERS`` names the members, with commas. ``GAP_HOW`` says what is left of them: nothing, a function that raises
NotImplementedError, or one that returns None.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import torch

from conformance.accelerators.simulated.device_profile import DeviceProfile
from conformance.accelerators.simulated.simulator import start

PROFILE = DeviceProfile(device="gap", comm="gapccl", graph="GapGraph", prefix="GAP", product="Lacks members")
MEMBERS, HOW = "GAP_MEMBERS", "GAP_HOW"
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


start(PROFILE.from_environment())
if os.environ.get(MEMBERS):
    take_away(torch.gap, os.environ[MEMBERS].split(","), os.environ.get(HOW, ""))  # type: ignore[attr-defined]
