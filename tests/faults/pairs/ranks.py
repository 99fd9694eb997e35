"""The simulated accelerator, whose ranks have faults of collectives."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from conformance.accelerators.backends.sim import SIM
from conformance.accelerators.torch_accelerator import TorchAccelerator


class Broken(TorchAccelerator):
    """As sim. Each rank arms the fault of the case that it is about to run."""

    def load(self) -> Any:
        from .collectives import follow_cases

        loaded = super().load()
        follow_cases()
        return loaded


BROKEN = Broken(**{field.name: getattr(SIM, field.name) for field in fields(SIM) if field.init})
