"""The guard: the zygote's parent, which adopts what is left when the zygote itself is killed.

    pytest ── guard ── zygote ── ranks ── what cases start

The zygote ends what ranks leave behind; the guard, what the zygote leaves behind. When the guard is killed the kernel
tells the zygote, which ends everything and itself. So whichever one process is killed with -9, the others clean up.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

from conformance.running.parent import adopt_orphans, die_with_parent

#: How long processes that were left behind may take to clean up, in seconds, before they are killed.
LAST_WORDS = 0.5


def main() -> None:
    """Fork the zygote, wait for its end, end what it leaves. The last argument is the number of its socket."""
    import socket

    guard = os.getpid()
    adopt_orphans()
    guarded: list[int] = []

    def pass_on(number: int, frame: object) -> None:
        del frame
        for pid in guarded:
            os.kill(pid, number)

    signal.signal(signal.SIGTERM, pass_on)
    zygote = os.fork()
    if zygote == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        die_with_parent(parent=guard)
        from conformance.ranks.zygote import live

        live()
    guarded.append(zygote)
    socket.socket(fileno=int(sys.argv[-1])).close()  # its end is the zygote's alone
    die_with_parent(signal.SIGTERM)
    _, status = os.waitpid(zygote, 0)
    guarded.clear()
    end_children(LAST_WORDS)
    os._exit(abs(os.waitstatus_to_exitcode(status)))


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
