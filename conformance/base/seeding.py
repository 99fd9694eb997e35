"""The accelerator whose devices a case's seed was for: a case that seeds them again need not know it."""

from __future__ import annotations

from typing import Any

_under_test: list[Any] = []


def remember(accelerator: Any) -> None:
    """Keep the accelerator under test."""
    _under_test[:] = [accelerator]


def seed_devices(seed: int) -> bool:
    """Seed the devices of the accelerator under test again; return whether there is one in this process."""
    for accelerator in _under_test:
        accelerator.manual_seed_all(seed)
    return bool(_under_test)
