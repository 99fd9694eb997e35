"""The processes whose parent this one is, those it has adopted included, and their end."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

#: How long processes that were left behind may take to clean up, in seconds, before they are killed.
LAST_WORDS = 0.5


def children() -> set[int]:
    """Processes whose parent is this one, adopted ones too."""
    pid = os.getpid()
    return set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def end_children(patience: float) -> None:
    """Ask every child to end, kill it after ``patience`` seconds, and reap it; nobody is left afterwards."""
    deadline = time.monotonic() + patience
    while left := children():
        number = signal.SIGKILL if time.monotonic() >= deadline else signal.SIGTERM
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.002)
