"""Detection of this machine's accelerator: each vendor's own module is asked, and impersonated modules are ignored."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from conformance.accelerators.backends import builtin, builtin_names
from conformance.accelerators.torch_accelerator import TorchAccelerator
from conformance.base.errors import SetupError


def detect() -> str:
    """Return the name of the accelerator to use here: ``cpu`` if no device answers, never a simulated one."""
    real = [accelerator for accelerator in map(builtin, builtin_names()) if not accelerator.simulated]
    return choose(real, is_usable, _preferred_by_torch)


def choose(
    candidates: Iterable[TorchAccelerator],
    usable: Callable[[TorchAccelerator], bool],
    preferred: Callable[[], str | None] = lambda: None,
) -> str:
    """Return the name of the usable accelerator that no other usable one impersonates; prefer devices to the host.

    If independent devices are present, return the one that torch prefers, else the first in alphabetical order.
    """
    present = [candidate for candidate in candidates if usable(candidate)]
    devices = [candidate for candidate in present if not candidate.is_host] or present
    impersonated = frozenset[str]().union(*(candidate.impersonates for candidate in devices))
    genuine = sorted(candidate.name for candidate in devices if candidate.name not in impersonated)
    if not genuine:
        raise SetupError("no accelerator is usable here, not even the CPU; is torch installed?")
    favorite = preferred() if len(genuine) > 1 else None
    return favorite if favorite in genuine else genuine[0]


def is_usable(accelerator: TorchAccelerator) -> bool:
    """Return whether its software loads and its own module finds a device. A broken wheel counts as unusable."""
    # A vendor may present its device as torch.cuda. Only the driver's device node distinguishes it from a GPU.
    if not accelerator.has_device_files():
        return False
    try:
        accelerator.load()
    except SetupError:
        return False
    return True


def _preferred_by_torch() -> str | None:
    """Return the device type that torch prefers here, or ``None``, also where torch has no ``torch.accelerator``."""
    import torch

    accelerator = getattr(torch, "accelerator", None)
    current = accelerator.current_accelerator() if accelerator is not None else None
    return current.type if current is not None else None
