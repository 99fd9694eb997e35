"""The simulated accelerator with a fault, for ``pytest --accelerator=tests.defects.accelerators:BROKEN``.

The environment variable ``CONFORMANCE_MUTANT`` names the mutant. Its fault is armed when the accelerator is loaded.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import fields
from typing import Any

from conformance.accelerators.backends.sim import SIM
from conformance.accelerators.torch_accelerator import TorchAccelerator

VARIABLE = "CONFORMANCE_MUTANT"
#: Contexts that stay entered until the process ends.
_ARMED = ExitStack()


class Broken(TorchAccelerator):
    """As sim, and broken from the moment it is loaded."""

    def load(self) -> Any:
        from tests.defects.faults import armed

        from .catalogue import by_name

        loaded = super().load()
        _ARMED.enter_context(armed(by_name(os.environ[VARIABLE]).fault))
        return loaded


def _claims() -> Any:
    name = os.environ.get(VARIABLE)
    if not name:
        return SIM.capabilities
    from .catalogue import by_name

    ours = by_name(name).claims
    cells = {getattr(one, "cell", one) for one in ours}
    return frozenset(one for one in SIM.capabilities if getattr(one, "cell", one) not in cells) | ours


BROKEN = Broken(
    **{field.name: getattr(SIM, field.name) for field in fields(SIM) if field.init} | {"capabilities": _claims()}
)
