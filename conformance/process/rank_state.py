"""What a case must not leave behind on a warm rank: taken before its body, given back after it."""

from __future__ import annotations

import signal
import sys
import threading
import warnings
from dataclasses import dataclass
from typing import Any

from conformance.process.state import ProcessState

#: Handlers that a case may have replaced. SIGUSR1 shows stacks, and belongs to faulthandler.
_SIGNALS = tuple(
    number
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGCHLD", "SIGPIPE", "SIGUSR2")
    if (number := getattr(signal, name, None)) is not None
)
#: A thread that is about to end may take this long, in seconds, before it counts as left behind.
_PATIENCE = 0.05


@dataclass(frozen=True)
class RankState:
    """The state of every process that runs cases, and what only a long-lived rank has to care about."""

    process: ProcessState
    module_path: list[str]
    excepthook: Any
    handlers: tuple[Any, ...]
    filters: list[Any]
    default_device: Any
    threads: frozenset[threading.Thread]

    @classmethod
    def take(cls) -> RankState:
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
        """Restore what differs; the names of what had leaked. Threads cannot be given back."""
        import torch

        leaked = self.process.give_back()
        if sys.path != self.module_path:
            sys.path[:] = self.module_path
            leaked.append("module_path")
        if sys.excepthook is not self.excepthook:
            sys.excepthook = self.excepthook
            leaked.append("excepthook")
        leaked += self._give_back_handlers()
        if warnings.filters != self.filters:
            warnings.filters[:] = self.filters  # type: ignore[index]
            warnings._filters_mutated()  # type: ignore[attr-defined]
            leaked.append("warning_filters")
        if torch.get_default_device() != self.default_device:
            torch.set_default_device(None)
            leaked.append("default_device")
        return leaked

    def _give_back_handlers(self) -> list[str]:
        leaked = []
        for number, handler in zip(_SIGNALS, self.handlers, strict=True):
            if signal.getsignal(number) != handler:
                signal.signal(number, handler)
                leaked.append(signal.Signals(number).name)
        return leaked

    def new_threads(self) -> list[str]:
        """The names of Python threads that the case has started and not ended."""
        new = [thread for thread in threading.enumerate() if thread not in self.threads]
        for thread in new:
            thread.join(_PATIENCE)
        return [thread.name for thread in new if thread.is_alive()]
