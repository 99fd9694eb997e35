"""What a case must not leave behind: process-wide state, taken before it and given back after it."""

from __future__ import annotations

import gc
import os
import random
from dataclasses import dataclass
from typing import Any

#: pytest writes the phase of the running test here.
_PYTESTS_OWN = "PYTEST_CURRENT_TEST"
_AS_STORED = (_PYTESTS_OWN, os.fsencode(_PYTESTS_OWN))


def _environment() -> dict[Any, Any]:
    """The variables as Python stores them: decoding each, twice a case, would take a hundredth of a run."""
    stored = getattr(os.environ, "_data", os.environ)
    return {name: value for name, value in stored.items() if name not in _AS_STORED}


@dataclass(frozen=True)
class ProcessState:
    """Process-wide settings that torch and Python keep."""

    environment: dict[Any, Any]
    folder: str
    default_dtype: Any
    grad_enabled: bool
    deterministic: bool
    threads: int

    @classmethod
    def take(cls) -> ProcessState:
        import torch

        return cls(
            _environment(),
            os.getcwd(),  # noqa: PTH109 - twice a case, and in a fifth of the time
            torch.get_default_dtype(),
            torch.is_grad_enabled(),
            torch.are_deterministic_algorithms_enabled(),
            torch.get_num_threads(),
        )

    def give_back(self) -> list[str]:
        """Restore what differs; the names of what had leaked."""
        now = ProcessState.take()
        leaked = [name for name in self.__dataclass_fields__ if getattr(now, name) != getattr(self, name)]
        for name in leaked:
            getattr(self, f"_restore_{name}")()
        return leaked

    def _restore_environment(self) -> None:
        pytests_own = os.environ.get(_PYTESTS_OWN)
        os.environ.clear()
        os.environ.update({os.fsdecode(name): os.fsdecode(value) for name, value in self.environment.items()})
        if pytests_own is not None:
            os.environ[_PYTESTS_OWN] = pytests_own

    def _restore_folder(self) -> None:
        os.chdir(self.folder)

    def _restore_default_dtype(self) -> None:
        import torch

        torch.set_default_dtype(self.default_dtype)

    def _restore_grad_enabled(self) -> None:
        import torch

        torch.set_grad_enabled(self.grad_enabled)

    def _restore_deterministic(self) -> None:
        import torch

        torch.use_deterministic_algorithms(self.deterministic)

    def _restore_threads(self) -> None:
        import torch

        torch.set_num_threads(self.threads)


def collect_seldom() -> None:
    """Keep what there is out of the garbage collector's sight, and let it come seldom: it took 4 % of a run.

    Cases that measure memory collect garbage for themselves.
    """
    gc.freeze()
    gc.set_threshold(5_000, 20, 50)


def seed_everything(seed: int, accelerator: Any) -> None:
    """Seed Python, NumPy, the host and every device."""
    import numpy
    import torch

    random.seed(seed)
    numpy.random.seed(seed)
    # torch.manual_seed would format a stack trace for each device type that is not initialised.
    torch.default_generator.manual_seed(seed)
    try:
        accelerator.manual_seed_all(seed)
    except Exception:  # noqa: BLE001 - a broken seeding call is the finding of the rng cases, not of all others
        return
