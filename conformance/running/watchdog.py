"""The watchdog: a deadline that even native code holding the GIL cannot outlive.

``faulthandler`` keeps a C thread that writes every stack to a file and ends the process; xdist then replaces the
worker, and the controller reads from the file whether the worker was hung or crashed.
"""

from __future__ import annotations

import faulthandler
import os
from pathlib import Path

#: How faulthandler begins a dump that a deadline caused, and one that a fatal signal caused.
_TIMEOUT_MARK = "Timeout ("
_FATAL_MARK = "Fatal Python error: "
_MOST_SHOWN = 6000
#: Frames of the machinery that carries a case say nothing about it.
_MACHINERY = ("_pytest/", "pluggy/", "xdist/", "execnet/", "<string>", "conformance/running/", "pytest/__main__")


class Watchdog:
    """One per process; ``stacks`` is the file that the stacks go to."""

    def __init__(self, stacks: Path) -> None:
        self.stacks = stacks
        self._fd = os.open(stacks, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        faulthandler.enable(self._fd, all_threads=True)

    def arm(self, deadline: float) -> None:
        """Give the work that begins now ``deadline`` seconds."""
        if os.lseek(self._fd, 0, os.SEEK_CUR):
            os.ftruncate(self._fd, 0)
            os.lseek(self._fd, 0, os.SEEK_SET)
        faulthandler.dump_traceback_later(deadline, exit=True, file=self._fd)

    def disarm(self) -> None:
        faulthandler.cancel_dump_traceback_later()


def stacks_path(folder: Path, worker: str) -> Path:
    return folder / "stacks" / f"{worker}.txt"


def read_stacks(path: Path) -> str:
    """What a dead process left: frames of the case and its libraries, shortened in the middle."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return ""
    text = _without_machinery(text)
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
    return stacks.lstrip().startswith(_TIMEOUT_MARK)


def fatal_error(stacks: str) -> str:
    """The name of the fatal signal in a dump, or nothing."""
    lines = (line for line in stacks.splitlines() if line.startswith(_FATAL_MARK))
    return next(lines, "").removeprefix(_FATAL_MARK)
