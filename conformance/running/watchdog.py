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
    """What a dead process left, shortened in the middle."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return ""
    if len(text) <= _MOST_SHOWN:
        return text
    return f"{text[: _MOST_SHOWN // 2]}\n…\n{text[-_MOST_SHOWN // 2 :]}"


def was_hung(stacks: str) -> bool:
    return stacks.lstrip().startswith(_TIMEOUT_MARK)


def fatal_error(stacks: str) -> str:
    """The name of the fatal signal in a dump, or nothing."""
    lines = (line for line in stacks.splitlines() if line.startswith(_FATAL_MARK))
    return next(lines, "").removeprefix(_FATAL_MARK)
