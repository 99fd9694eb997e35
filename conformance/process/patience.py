"""Time that is not the case's: at a builder's first use a compiler runs for minutes, and says nothing of the kernel."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

#: Seconds that one builder may take. PyTorch's extension loader leaves its lock behind if it is killed meanwhile, and
#: whoever loads that extension afterwards waits for ever: better late than that.
COMPILING = 600.0


@contextmanager
def while_compiling(most: float = COMPILING) -> Iterator[None]:
    """The case's clock stands still; what happens inside has ``most`` seconds of its own, and then is a hang.

    Nothing happens where no clock runs: in ranks, whose cases load no builder, and where there is no SIGALRM.
    """
    left = signal.getitimer(signal.ITIMER_REAL)[0] if hasattr(signal, "SIGALRM") else 0.0
    if not left:
        yield
        return
    signal.setitimer(signal.ITIMER_REAL, most)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left)
