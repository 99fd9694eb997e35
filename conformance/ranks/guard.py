"""The guard: the zygote's parent, which adopts what is left when the zygote itself is killed.

    pytest ── guard ── zygote ── ranks ── what cases start

The zygote ends what ranks leave behind; the guard, what the zygote leaves behind. When the guard is killed the kernel
tells the zygote, which ends everything and itself. So whichever one process is killed with -9, the others clean up.
"""

from __future__ import annotations

import os
import signal
import sys

from conformance.process.children import LAST_WORDS, end_children
from conformance.process.lifetime import adopt_orphans, die_with_parent


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
        from conformance.ranks.fork_server import live

        live()
    guarded.append(zygote)
    socket.socket(fileno=int(sys.argv[-1])).close()  # its end is the zygote's alone
    die_with_parent(signal.SIGTERM)
    _, status = os.waitpid(zygote, 0)
    guarded.clear()
    end_children(LAST_WORDS)
    os._exit(abs(os.waitstatus_to_exitcode(status)))
