"""Tests that no process is left, whichever process is killed."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.acceptance.running import kill, start
from tests.harness.ranks.test_torture import leftovers
from tests.layers import longer
from tests.waiting import PATIENCE, wait_for

HERE = Path(__file__).parent


def both_ranks_are_busy(folder: Path) -> None:
    wait_for("both ranks are in their case", lambda: len(list(folder.glob("busy.*"))) == 2)


@pytest.mark.parametrize(
    ("workers", "number"),
    longer(
        itertools.product(["-n0", "-n1"], [signal.SIGKILL, signal.SIGTERM]),
        ("-n0", signal.SIGTERM),
        ("-n1", signal.SIGKILL),
    ),
    ids=str,
)
def test_ranks_and_their_children_end_with_pytest(tmp_path: Path, workers: str, number: int) -> None:
    tests = shutil.copy(HERE / "kill_cases.py", tmp_path / "test_kill_cases.py")
    process = start("--accelerator=cpu", str(tests), workers, cwd=tmp_path, KILL_NOTES=str(tmp_path))
    both_ranks_are_busy(tmp_path)
    assert sum("child-of-rank" in line for line in leftovers(str(tmp_path))) == 1

    process.send_signal(number)

    # Its ranks and their child would stay for ten minutes.
    wait_for("no process of the run is left", lambda: not leftovers(str(tmp_path)), 60)
    kill(process)


def test_ctrl_c_ends_ranks_too(tmp_path: Path) -> None:
    tests = shutil.copy(HERE / "kill_cases.py", tmp_path / "test_kill_cases.py")
    process = start("--accelerator=cpu", str(tests), "-n0", cwd=tmp_path, KILL_NOTES=str(tmp_path))
    both_ranks_are_busy(tmp_path)

    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=PATIENCE)

    assert process.returncode == 2, output
    # Its ranks and their child would stay for ten minutes.
    wait_for("no process of the run is left", lambda: not leftovers(str(tmp_path)), 60)


def test_a_killed_rank_is_one_crash_and_is_replaced(tmp_path: Path) -> None:
    tests = shutil.copy(HERE / "kill_cases.py", tmp_path / "test_kill_cases.py")
    process = start("--accelerator=cpu", str(tests), "-n0", cwd=tmp_path, KILL_NOTES=str(tmp_path))
    both_ranks_are_busy(tmp_path)
    victim = int(next(tmp_path.glob("busy.*")).name.split(".")[1])

    os.kill(victim, signal.SIGKILL)
    output, _ = process.communicate(timeout=PATIENCE)

    assert "was killed by SIGKILL before its body returned" in output
    assert "pass 2, skip 0, fail 1" in output
    assert not leftovers(str(tmp_path))
