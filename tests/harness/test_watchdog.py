"""Tests of the watchdog: it ends a process that holds the GIL, and its dump tells a hang from a crash."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from conformance.process.watchdog import fatal_error, read_stacks, was_hung

BODY = """
import ctypes, sys
from pathlib import Path
from conformance.process.watchdog import Watchdog
dog = Watchdog(Path(sys.argv[1]))
dog.arm(60); dog.disarm()   # an earlier case that ended in time
dog.arm(0.5)
{action}
"""


def died_of(action: str, folder: Path) -> str:
    """Return the stacks of a process that has ended, long before its action would have."""
    stacks = folder / "stacks.txt"
    subprocess.run([sys.executable, "-c", BODY.format(action=action), str(stacks)], check=False, timeout=240)
    return read_stacks(stacks)


def test_a_native_loop_holding_the_gil_is_ended(tmp_path: Path) -> None:
    stacks = died_of("ctypes.PyDLL(None).sleep(600)", tmp_path)

    assert was_hung(stacks)


def test_a_segfault_is_no_hang(tmp_path: Path) -> None:
    stacks = died_of("ctypes.string_at(0)", tmp_path)

    assert not was_hung(stacks)
    assert fatal_error(stacks) == "Segmentation fault"


def test_a_missing_dump_is_empty(tmp_path: Path) -> None:
    assert read_stacks(tmp_path / "none") == ""
