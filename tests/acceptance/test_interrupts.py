"""Interrupted runs: an unfinished case has no verdict, and ``--resume`` gives the report of an undisturbed run."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.reports.journal import read_journal
from tests.layers import longer
from tests.waiting import PATIENCE, wait_for

from .running import HERE, Run, run, start

#: ``tox run -e instrument -- chaos`` has more.
INTERRUPTS = int(os.environ.get("CONFORMANCE_KILLS", "6")) // 3
FOREVER = """
import os, time
from pathlib import Path
from conformance.plan.case import case

@case("vendor.first")
def test_first():
    pass

@case("vendor.second")
def test_second():
    if not Path("released").exists():
        Path("running").touch()
        time.sleep(600)

@case("vendor.third")
def test_third():
    pass
"""


def to_all(number: int) -> Callable[[subprocess.Popen[str]], None]:
    """Send a signal to all processes of a run, as a terminal and a job scheduler do."""
    return lambda process: os.killpg(process.pid, number)


def to_pytest(number: int) -> Callable[[subprocess.Popen[str]], None]:
    """Send a signal to pytest alone, as ``kill`` does."""
    return lambda process: process.send_signal(number)


WAYS = {
    "ctrl-c": to_all(signal.SIGINT),
    "sigint": to_pytest(signal.SIGINT),
    "sigterm": to_pytest(signal.SIGTERM),
    "sigterm-all": to_all(signal.SIGTERM),
    "sigkill": to_pytest(signal.SIGKILL),
}


@pytest.mark.parametrize(
    ("way", "workers"), longer(itertools.product(WAYS, ["-n0", "-n2"]), ("ctrl-c", "-n2"), ("sigterm", "-n0"))
)
def test_the_interrupted_case_runs_again(way: str, workers: str, tmp_path: Path) -> None:
    (tmp_path / "test_vendor.py").write_text(FOREVER)
    words = ("--accelerator=cpu", "test_vendor.py", workers)
    process = start(*words, cwd=tmp_path)
    wait_for_file(tmp_path / "running", process)
    WAYS[way](process)
    output, _ = process.communicate(timeout=PATIENCE)
    journal = read_journal(tmp_path / "conformance-report/cpu/journal.jsonl")
    (tmp_path / "released").touch()

    resumed = run(*words, "--resume", cwd=tmp_path)

    assert process.returncode in (2, -signal.SIGTERM, -signal.SIGKILL), output
    assert "vendor.second" not in journal.ended, output
    assert resumed.verdicts == {f"vendor.{name}": ("pass", "native") for name in ("first", "second", "third")}


@pytest.mark.long
@pytest.mark.parametrize("workers", ["-n0", "-n2"])
@pytest.mark.parametrize("way", ["ctrl-c", "sigterm", "sigkill"])
def test_a_run_interrupted_at_random_points_resumes_to_the_same_report(way: str, workers: str, tmp_path: Path) -> None:
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    for folder in (undisturbed, disturbed):
        folder.mkdir()
        shutil.copy(HERE / "slow_cases.py", folder / "test_slow_cases.py")
    words = ("--accelerator=cpu", "test_slow_cases.py", workers)
    whole = run(*words, cwd=undisturbed, CHAOS_LOG=str(undisturbed / "log"))
    dice = random.Random(f"{way} {workers}")

    for _ in range(INTERRUPTS):
        process = start(*words, "--resume", cwd=disturbed, CHAOS_LOG=str(disturbed / "log"))
        # Not only while cases run: loading, collection and the end of a run are points too.
        wait_for_file(disturbed / "conformance-report/cpu", process)
        time.sleep(dice.uniform(0, 8))
        if process.poll() is None:
            WAYS[way](process)
        process.communicate(timeout=PATIENCE)
    last = run(*words, "--resume", cwd=disturbed, CHAOS_LOG=str(disturbed / "log"))

    assert without_times(last) == without_times(whole), last.output


def wait_for_file(path: Path, process: subprocess.Popen[str]) -> None:
    """Wait until a run has made the file, or has ended without it."""
    wait_for(f"the run makes {path.name}, or ends", lambda: path.exists() or process.poll() is not None)
    assert path.exists(), process.communicate()[0]


def without_times(finished: Run) -> list[object]:
    return [replace(case, seconds=0.0) for case in finished.report.cases]
