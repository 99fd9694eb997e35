"""Which accelerator this machine has: asked of each vendor's own module, ordered by who impersonates whom."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from conformance.accelerators.backends import builtin, builtin_names
from conformance.accelerators.torch_accelerator import TorchAccelerator
from conformance.errors import SetupError


def detect() -> str:
    """The name of the accelerator to use here; ``cpu`` if no device answers. Never a simulated one."""
    real = [accelerator for accelerator in map(builtin, builtin_names()) if not accelerator.simulated]
    return choose(real, is_usable, _torch_says)


def choose(
    candidates: Iterable[TorchAccelerator],
    usable: Callable[[TorchAccelerator], bool],
    preferred: Callable[[], str | None] = lambda: None,
) -> str:
    """The usable accelerator that nobody usable impersonates; a device before the host.

    Where independent devices are present, the one torch itself would take, else the first by name.
    """
    present = [candidate for candidate in candidates if usable(candidate)]
    devices = [candidate for candidate in present if not candidate.is_host] or present
    masks = frozenset[str]().union(*(candidate.impersonates for candidate in devices))
    genuine = sorted(candidate.name for candidate in devices if candidate.name not in masks)
    if not genuine:
        raise SetupError("no accelerator is usable here, not even the CPU; is torch installed?")
    favourite = preferred() if len(genuine) > 1 else None
    return favourite if favourite in genuine else genuine[0]


def is_usable(accelerator: TorchAccelerator) -> bool:
    """Whether its software loads and its own module finds a device. A broken wheel is unusable, and harms nobody."""
    if not accelerator.has_device_files():
        return False
    try:
        accelerator.load()
    except SetupError:
        return False
    return True


def _torch_says() -> str | None:
    import torch

    accelerator = getattr(torch, "accelerator", None)
    current = accelerator.current_accelerator() if accelerator is not None else None
    return current.type if current is not None else None
