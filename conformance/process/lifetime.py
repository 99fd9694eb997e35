"""Workers and ranks do not outlive who started them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # from <linux/prctl.h>


def die_with_parent(number: int = signal.SIGKILL, parent: int | None = None) -> None:
    """Have the kernel send this process a signal when its parent dies; ``parent`` is who that should be.

    Without it a worker whose controller was killed goes on to the end of its case and writes into a journal that a
    resumed run may already be continuing. Only Linux offers it; elsewhere execnet ends the worker a little later.
    """
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid() if parent is None else parent
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)  # it died before the kernel was told


def adopt_orphans() -> None:
    """Become the parent of what children leave behind, so that it can be found and ended. Only on Linux."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1)
