"""Watchdog: a case timeout that also ends native code which holds the GIL, and the stacks that it leaves.

An interval timer sends SIGALRM at the deadline. ``faulthandler`` answers in C: it writes all stacks to a file and lets
the signal end the process. xdist then replaces the worker, and the controller reads the file. Setting a timer costs a
microsecond. ``faulthandler.dump_traceback_later`` starts and joins a thread for each case, which costs a hundred times
as much, so it is used only where SIGALRM does not exist.
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_HAS_ALARM = hasattr(signal, "SIGALRM")
#: First words of a faulthandler dump that a fatal signal caused.
_FATAL_MARK = "Fatal Python error: "
#: Characters of stacks in a message; longer ones are cut in the middle.
_MOST_SHOWN = 6000
#: Frames of the programs that run a case; they say nothing about it.
_MACHINERY = ("_pytest/", "pluggy/", "xdist/", "execnet/", "<string>", "conformance/runner/", "pytest/__main__")


class Watchdog:
    """Timeout of the running case, one per process. ``stacks`` is the file for the stacks."""

    def __init__(self, stacks: Path) -> None:
        self.stacks = stacks
        self._fd = os.open(stacks, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        # The descriptor stays open as long as the process: faulthandler writes to it when it is too late to open one.
        faulthandler.enable(self._fd, all_threads=True)
        if _HAS_ALARM:
            # faulthandler writes the stacks, then chains to this default action, which ends the process.
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            faulthandler.register(signal.SIGALRM, file=self._fd, all_threads=True, chain=True)

    def arm(self, deadline: float) -> None:
        """Start the timeout, in seconds."""
        if _HAS_ALARM:
            signal.setitimer(signal.ITIMER_REAL, deadline)
        else:
            faulthandler.dump_traceback_later(deadline, exit=True, file=self._fd)

    def disarm(self) -> None:
        """Stop the timeout."""
        if _HAS_ALARM:
            signal.setitimer(signal.ITIMER_REAL, 0)
        else:
            faulthandler.cancel_dump_traceback_later()


def stacks_path(folder: Path, worker: str) -> Path:
    """Return the file for the stacks of a worker, in a report folder."""
    return folder / "stacks" / f"{worker}.txt"


def read_stacks(path: Path) -> str:
    """Return the stacks that a dead process has left, or an empty string."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def readable(stacks: str) -> str:
    """Return the frames of the case and its libraries, shortened in the middle."""
    text = _without_machinery(stacks)
    if len(text) <= _MOST_SHOWN:
        return text
    return f"{text[: _MOST_SHOWN // 2]}\n…\n{text[-_MOST_SHOWN // 2 :]}"


def _without_machinery(stacks: str) -> str:
    """Drop frames of pytest and its plugins, and threads that have no other frames."""
    lines = [line for line in stacks.splitlines() if not _is_machinery(line)]
    followed = zip(lines, [*lines[1:], ""], strict=False)
    return "\n".join(line for line, after in followed if not _is_empty_thread(line, after))


def _is_machinery(line: str) -> bool:
    return line.startswith("  File ") and any(part in line for part in _MACHINERY)


def _is_empty_thread(line: str, after: str) -> bool:
    return not line or (line.startswith(("Thread 0x", "Current thread 0x")) and not after.startswith("  "))


#: A frame of a case's own code in a dump, from which the step is known at which the process ended.
_STEP = re.compile(r'  File "[^"]*[/\\](conformance[/\\]suites[/\\][^"]+)", line (\d+) in (\S+)')


def step_of(stacks: str) -> str:
    """Return the innermost frame of the suites in a dump, as words for a message; empty if there is none."""
    found = _STEP.search(stacks)
    return f"in {found[3]}() at {found[1]}:{found[2]}" if found else ""


def was_hung(stacks: str) -> bool:
    """Tell whether the deadline caused a dump. Any other dump begins with the fatal error that caused it."""
    return bool(stacks.strip()) and _FATAL_MARK not in stacks


def fatal_error(stacks: str) -> str:
    """Return the name of the fatal signal in a dump, or an empty string."""
    lines = (line for line in stacks.splitlines() if line.startswith(_FATAL_MARK))
    return next(lines, "").removeprefix(_FATAL_MARK)


#: Seconds that one op builder may take, also on a busy machine. The limit is generous: if PyTorch's extension loader is
#: killed, it leaves its lock file behind, and every later load of that extension waits for ever.
COMPILING = 600.0


@contextmanager
def while_compiling(limit: float = COMPILING) -> Iterator[None]:
    """Suspend the case timeout while a kernel compiles. The code inside has ``limit`` seconds, and is then a hang.

    A builder's first use may run a compiler for minutes, which says nothing about the kernel. The function does nothing
    where no timeout runs: in ranks, whose cases load no builder, and on systems without SIGALRM.
    """
    left = signal.getitimer(signal.ITIMER_REAL)[0] if hasattr(signal, "SIGALRM") else 0.0
    if not left:
        yield
        return
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left)


# --- Stacks of ranks ------------------------------------------------------------------------------------------------

#: Below the first frame of a case there are only frames of the rank's main loop and of the fork server.
_OURS = "/conformance/ranks/"
#: Library frames between ours; without frames of a case they say nothing.
_BETWEEN = ("/threading.py", "/socket.py", "<string>")


def rank_stacks(stacks: str) -> str:
    """Return the stacks of a rank's threads that run a case's code or its libraries, shortened in the middle."""
    text = "\n".join("\n".join(block) for block in map(_without_ours, _blocks(stacks)) if block)
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN // 2]}\n…\n{text[-_MOST_SHOWN // 2 :]}"


def _blocks(stacks: str) -> list[list[str]]:
    """Split a dump into one block per thread. The lines before the first thread are a block too."""
    blocks: list[list[str]] = [[]]
    for line in stacks.splitlines():
        if line.startswith(("Thread 0x", "Current thread 0x")):
            blocks.append([])
        if line.strip():
            blocks[-1].append(line)
    return blocks


def _without_ours(block: list[str]) -> list[str]:
    """Return the block without our frames, or nothing if no frame of a case is left."""
    if not any(line.startswith("  File ") for line in block):
        return block
    kept = [line for line in block if not (line.startswith("  File ") and _OURS in line)]
    informative = [line for line in kept if line.startswith("  File ") and not any(part in line for part in _BETWEEN)]
    return kept if informative else []
