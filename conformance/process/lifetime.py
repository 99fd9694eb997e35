"""Lifetime of child processes: workers and ranks end with the process that started them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # from <linux/prctl.h>


def die_with_parent(number: int = signal.SIGKILL, parent: int | None = None) -> None:
    """Let the kernel send this process a signal when its parent dies. ``parent`` is the expected parent's process id.

    Otherwise a worker whose controller was killed would run its case to the end, and write into a journal that a
    resumed run may already continue. Only Linux offers this; elsewhere execnet ends the worker a little later.
    """
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid() if parent is None else parent
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)  # the parent died before the kernel knew of the request


def adopt_orphans() -> None:
    """Become the parent of processes that children leave behind, so that they can be found and ended. Linux only."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1)


#: Seconds that processes which were left behind have to clean up before they are killed.
CLEAN_UP_SECONDS = 0.5


def children() -> set[int]:
    """Return the ids of all child processes, including adopted ones. Linux only."""
    pid = os.getpid()
    return set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def end_children(timeout: float) -> None:
    """Ask every child to end, kill it after ``timeout`` seconds, and reap it. No child is left afterwards."""
    deadline = time.monotonic() + timeout
    while left := children():
        number = signal.SIGKILL if time.monotonic() >= deadline else signal.SIGTERM
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.002)
