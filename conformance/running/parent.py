"""Workers do not outlive their controller."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # from <linux/prctl.h>


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies.

    Without it a worker whose controller was killed goes on to the end of its case and writes into a journal that a
    resumed run may already be continuing. Only Linux offers it; elsewhere execnet ends the worker a little later.
    """
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it died before the kernel was told
