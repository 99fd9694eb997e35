"""The watchdog: a deadline that even native code holding the GIL cannot outlive.

An interval timer sends SIGALRM at the deadline. ``faulthandler`` answers in C: it writes every stack to a file and
lets the signal end the process; xdist then replaces the worker, and the controller reads what the file says.
Setting a timer costs a microsecond; the thread that ``faulthandler.dump_traceback_later`` starts and joins for each
case costs a hundred times as much, and serves only where there is no SIGALRM.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from pathlib import Path

_HAS_ALARM = hasattr(signal, "SIGALRM")
#: How faulthandler begins a dump that a fatal signal caused.
_FATAL_MARK = "Fatal Python error: "
_MOST_SHOWN = 6000
#: Frames of the machinery that carries a case say nothing about it.
_MACHINERY = ("_pytest/", "pluggy/", "xdist/", "execnet/", "<string>", "conformance/runner/", "pytest/__main__")


class Watchdog:
    """One per process; ``stacks`` is the file that the stacks go to."""

    def __init__(self, stacks: Path) -> None:
        self.stacks = stacks
        self._fd = os.open(stacks, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        faulthandler.enable(self._fd, all_threads=True)
        if _HAS_ALARM:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            faulthandler.register(signal.SIGALRM, file=self._fd, all_threads=True, chain=True)

    def arm(self, deadline: float) -> None:
        """Give the work that begins now ``deadline`` seconds."""
        if _HAS_ALARM:
            signal.setitimer(signal.ITIMER_REAL, deadline)
        else:
            faulthandler.dump_traceback_later(deadline, exit=True, file=self._fd)

    def disarm(self) -> None:
        if _HAS_ALARM:
            signal.setitimer(signal.ITIMER_REAL, 0)
        else:
            faulthandler.cancel_dump_traceback_later()


def stacks_path(folder: Path, worker: str) -> Path:
    return folder / "stacks" / f"{worker}.txt"


def read_stacks(path: Path) -> str:
    """What a dead process left; nothing if it left nothing."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def readable(stacks: str) -> str:
    """Frames of the case and its libraries, shortened in the middle."""
    text = _without_machinery(stacks)
    if len(text) <= _MOST_SHOWN:
        return text
    return f"{text[: _MOST_SHOWN // 2]}\n…\n{text[-_MOST_SHOWN // 2 :]}"


def _without_machinery(stacks: str) -> str:
    """Drop frames of pytest and its plugins, and threads that have nothing else."""
    lines = [line for line in stacks.splitlines() if not _is_machinery(line)]
    followed = zip(lines, [*lines[1:], ""], strict=False)
    return "\n".join(line for line, after in followed if not _is_empty_thread(line, after))


def _is_machinery(line: str) -> bool:
    return line.startswith("  File ") and any(part in line for part in _MACHINERY)


def _is_empty_thread(line: str, after: str) -> bool:
    return not line or (line.startswith(("Thread 0x", "Current thread 0x")) and not after.startswith("  "))


def was_hung(stacks: str) -> bool:
    """Whether a dump was caused by the deadline: any other dump begins with the fatal error that caused it."""
    return bool(stacks.strip()) and _FATAL_MARK not in stacks


def fatal_error(stacks: str) -> str:
    """The name of the fatal signal in a dump, or nothing."""
    lines = (line for line in stacks.splitlines() if line.startswith(_FATAL_MARK))
    return next(lines, "").removeprefix(_FATAL_MARK)
