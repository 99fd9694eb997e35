"""State of a process that cases must not change: taken before each case, restored after it."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import threading
import warnings
from dataclasses import dataclass
from typing import Any

from conformance.base.seeding import remember

#: pytest writes the phase of the running test here.
_PYTESTS_OWN = "PYTEST_CURRENT_TEST"
#: Handlers that a case may replace. SIGUSR1 makes a rank write its stacks, and belongs to faulthandler.
_SIGNALS = tuple(
    number
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGCHLD", "SIGPIPE", "SIGUSR2")
    if (number := getattr(signal, name, None)) is not None
)
#: Seconds that an ending thread may take before it counts as left behind.
_THREAD_TIMEOUT = 0.05


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != _PYTESTS_OWN}


@dataclass(frozen=True)
class ProcessState:
    """Process-wide settings of torch and Python."""

    environment: dict[str, str]
    folder: str
    default_dtype: Any
    grad_enabled: bool
    deterministic: bool
    threads: int

    @classmethod
    def take(cls) -> ProcessState:
        """Return the present state."""
        import torch

        return cls(
            _environment(),
            os.getcwd(),  # noqa: PTH109 - Path.cwd() takes five times as long, and this runs twice in every case
            torch.get_default_dtype(),
            torch.is_grad_enabled(),
            torch.are_deterministic_algorithms_enabled(),
            torch.get_num_threads(),
        )

    def changes(self) -> list[str]:
        """Return in words what differs now, but for the environment, which every vendor's package may set."""
        now = ProcessState.take()
        names = [name for name in self.__dataclass_fields__ if name != "environment"]
        pairs = [(name, getattr(self, name), getattr(now, name)) for name in names]
        return [f"{name} from {before} to {after}" for name, before, after in pairs if before != after]

    def give_back(self) -> list[str]:
        """Restore what differs, and return the names of what a case has changed."""
        now = ProcessState.take()
        leaked = [name for name in self.__dataclass_fields__ if getattr(now, name) != getattr(self, name)]
        for name in leaked:
            getattr(self, f"_restore_{name}")()
        return leaked

    def _restore_environment(self) -> None:
        """Restore all environment variables but the one that pytest sets for the running test."""
        pytests_own = os.environ.get(_PYTESTS_OWN)
        os.environ.clear()
        os.environ.update(self.environment)
        # pytest deletes the variable after the test, and fails where it is missing.
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


@dataclass(frozen=True)
class RankState:
    """State of a warm rank: that of every process that runs cases, and what only a long-lived process needs."""

    process: ProcessState
    module_path: list[str]
    excepthook: Any
    handlers: tuple[Any, ...]
    filters: list[Any]
    default_device: Any
    threads: frozenset[threading.Thread]

    @classmethod
    def take(cls) -> RankState:
        """Return the present state."""
        import torch

        return cls(
            ProcessState.take(),
            list(sys.path),
            sys.excepthook,
            tuple(signal.getsignal(number) for number in _SIGNALS),
            list(warnings.filters),
            torch.get_default_device(),
            frozenset(threading.enumerate()),
        )

    def give_back(self) -> list[str]:
        """Restore what differs, and return the names of what a case has changed. Threads cannot be restored."""
        import torch

        leaked = self.process.give_back()
        if sys.path != self.module_path:
            sys.path[:] = self.module_path
            leaked.append("module_path")
        if sys.excepthook is not self.excepthook:
            sys.excepthook = self.excepthook
            leaked.append("excepthook")
        leaked += self._restore_handlers()
        if warnings.filters != self.filters:
            # Only a new list of filters makes Python forget which warnings it has shown already.
            warnings.resetwarnings()
            warnings.filters[:] = self.filters  # type: ignore[index]
            leaked.append("warning_filters")
        if torch.get_default_device() != self.default_device:
            torch.set_default_device(None)
            leaked.append("default_device")
        return leaked

    def _restore_handlers(self) -> list[str]:
        """Restore the signal handlers and return the names of the signals whose handler had changed."""
        leaked = []
        for number, handler in zip(_SIGNALS, self.handlers, strict=True):
            if signal.getsignal(number) != handler:
                signal.signal(number, handler)
                leaked.append(signal.Signals(number).name)
        return leaked

    def new_threads(self) -> list[str]:
        """Return the names of Python threads that the case has started and not ended."""
        new = [thread for thread in threading.enumerate() if thread not in self.threads]
        for thread in new:
            # A thread that the body has told to end may need a moment for it.
            thread.join(_THREAD_TIMEOUT)
        return [thread.name for thread in new if thread.is_alive()]


def collect_seldom() -> None:
    """Exclude existing objects from garbage collection, and let it run seldom: it took 4 % of a run.

    Cases that measure memory collect garbage by themselves.
    """
    gc.freeze()
    gc.set_threshold(5_000, 20, 50)


class EarlierObjects:
    """Objects of earlier cases, which a case about memory must not collect again and again: each time took 0.3 s."""

    def __init__(self) -> None:
        self._aside = False

    def set_aside(self) -> None:
        """Collect the garbage of earlier cases, whose tensors would be freed meanwhile, and set aside what is left."""
        gc.collect()
        gc.freeze()
        self._aside = True

    def take_back(self) -> None:
        """Let later collections see again what was set aside."""
        if self._aside:
            gc.unfreeze()
            self._aside = False


def seed_everything(seed: int, accelerator: Any) -> None:
    """Seed Python, NumPy, the host's generator and the generators of all devices."""
    import numpy
    import torch

    random.seed(seed)
    numpy.random.seed(seed)
    # torch.manual_seed would format a stack trace for each device type that is not initialised.
    torch.default_generator.manual_seed(seed)
    remember(accelerator)
    try:
        accelerator.manual_seed_all(seed)
    except Exception:  # noqa: BLE001 - a broken seeding call is the failure of the rng cases, not of all other cases
        return
