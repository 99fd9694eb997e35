"""Chaos: a run on ranks, somebody of it killed with -9 at some moment, and who is left a second later."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.acceptance.running import start

CASES = Path(__file__).with_name("chaos_rank_cases.py")
#: When the victim dies, in seconds after the first rank has begun a case. Before that there is only what imports.
LATEST = 0.8
#: How long everybody else may take to be gone when pytest has been killed.
MOMENT = 1.0


@dataclass(frozen=True)
class Outcome:
    """Who was killed, and the command lines of those who were left."""

    victim: str
    left: tuple[str, ...]


def marked(mark: str) -> dict[int, str]:
    """Processes that were started, directly or not, with that mark in their environment: number and command line."""
    found = {}
    for process in os.listdir("/proc"):
        try:
            if process.isdigit() and mark.encode() in Path(f"/proc/{process}/environ").read_bytes():
                line = Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                found[int(process)] = line
        except OSError:
            continue  # it has ended meanwhile
    return found


def one_run(dice: random.Random) -> Outcome:
    """One run and one death."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tests = shutil.copy(CASES, folder / "test_chaos_rank_cases.py")
        workers = dice.choice(("-n0", "-n1", "-n2"))
        process = start("--accelerator=cpu", str(tests), workers, cwd=folder, CHAOS_NOTES=name)
        _wait_for(folder / "begun", process)
        time.sleep(dice.uniform(0, LATEST))
        kind, victim = _victim(dice, marked(name), process.pid)
        os.kill(victim, signal.SIGKILL)
        if kind == "pytest":
            process.wait(10)
        else:
            process.communicate(timeout=120)  # the run goes on without it, and to its end
        time.sleep(MOMENT)
        left = marked(name)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if kind == "pytest":
            process.communicate()
        return Outcome(f"{kind} {workers}", tuple(left.values()))


def _wait_for(file: Path, process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + 600
    while not file.exists():
        if (process.poll() is not None and not file.exists()) or time.monotonic() > until:
            raise RuntimeError(f"the run did not begin: {process.communicate()[0]}")
        time.sleep(0.01)


def _victim(dice: random.Random, processes: dict[int, str], pytest_process: int) -> tuple[str, int]:
    """Half the time pytest itself; else any process of the run: a worker, a zygote, a rank at work, an idle one."""
    others = [pid for pid in processes if pid != pytest_process]
    if not others or dice.random() < 0.5:
        return "pytest", pytest_process
    victim = dice.choice(sorted(others))
    return ("zygote or rank" if "zygote" in processes[victim] else "worker"), victim
