"""Chaos runs: a run on ranks in which up to three processes are killed with SIGKILL, and what is left a second later.

In half of the runs pytest itself is killed last. The others must reach their end without the killed processes. A
process, a port or a segment of shared memory that a death leaves behind is still there at the end of the run.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.acceptance.running import start

CASES = Path(__file__).with_name("chaos_rank_cases.py")
#: When somebody dies, in seconds after the first rank has begun a case, or after the death before. Before the first
#: case there is only what imports.
LATEST = 0.8
MOST_DEATHS = 3
#: How long a run may go on after the last death, when pytest lives.
_TIMEOUT = 120.0
#: How long everybody else may take to be gone when pytest has been killed.
MOMENT = 1.0
#: A socket that listens, in /proc/net/tcp: its state, and where its number stands.
_LISTENS, _STATE, _INODE = "0A", 3, 9
_SEGMENTS = Path("/dev/shm")


@dataclass(frozen=True)
class Outcome:
    """Result of a chaos run: the killed processes in order, and leftovers as command lines, ports and segment names."""

    victims: tuple[str, ...]
    left: tuple[str, ...]


def marked(mark: str) -> dict[int, str]:
    """Return the processes with this mark in their environment: process id and command line."""
    found = {}
    for process in os.listdir("/proc"):
        try:
            if process.isdigit() and mark.encode() in Path(f"/proc/{process}/environ").read_bytes():
                line = Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                found[int(process)] = line
        except OSError:
            continue  # it has ended meanwhile
    return found


def listening() -> dict[str, str]:
    """Return the listening sockets of this host: inode, and address and port in hexadecimal."""
    rows = [line.split() for file in ("tcp", "tcp6") for line in Path("/proc/net", file).read_text().splitlines()]
    return {row[_INODE]: row[1] for row in rows if row[_STATE] == _LISTENS}


def sockets_of(processes: Iterable[int]) -> set[str]:
    """Return the inodes of the sockets that these processes have open."""
    found = set()
    for process in processes:
        with contextlib.suppress(OSError):  # it has ended meanwhile
            for descriptor in os.scandir(f"/proc/{process}/fd"):
                found.update(re.findall(r"socket:\[(\d+)\]", str(Path(descriptor).readlink())))
    return found


def one_run(dice: random.Random) -> Outcome:
    """Start a run, kill processes until its end, and return the outcome."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tests = shutil.copy(CASES, folder / "test_chaos_rank_cases.py")
        workers = dice.choice(("-n0", "-n1", "-n2"))
        process = start("--accelerator=cpu", str(tests), workers, cwd=folder, CHAOS_NOTES=name)
        _wait_for(folder / "begun", process)
        victims, sockets = _deaths(dice, process, name)
        process.communicate(timeout=_TIMEOUT)
        time.sleep(MOMENT)
        left = (*end(name), *ports(sockets), *segments(folder))
        return Outcome(tuple(f"{victim} {workers}" for victim in victims), left)


def _deaths(dice: random.Random, process: subprocess.Popen[str], mark: str) -> tuple[list[str], set[str]]:
    """Return the killed processes, and all sockets that processes of the run had open just before a kill."""
    victims: list[str] = []
    sockets: set[str] = set()
    deaths, ends_with_pytest = dice.randint(1, MOST_DEATHS), dice.random() < 0.5
    for number in range(1, deaths + 1):
        time.sleep(dice.uniform(0, LATEST))
        processes = marked(mark)
        if process.poll() is not None:
            break  # it was done before its time had come
        sockets |= sockets_of(processes)
        others = sorted(pid for pid in processes if pid != process.pid)
        victim = process.pid if (number == deaths and ends_with_pytest) or not others else dice.choice(others)
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
            victims.append("pytest" if victim == process.pid else _kind(processes[victim]))
        if victim == process.pid:
            break
    return victims, sockets


def end(mark: str) -> list[str]:
    """Return the processes that are still there, and end them."""
    left = marked(mark)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return list(left.values())


def ports(sockets: set[str]) -> list[str]:
    return [f"listening socket {where}" for number, where in listening().items() if number in sockets]


def segments(folder: Path) -> list[str]:
    """Return the segments of shared memory that cases named after the folder, and remove them."""
    left = [entry for entry in _SEGMENTS.iterdir() if folder.name in entry.name]
    for entry in left:
        entry.unlink(missing_ok=True)
    return [str(entry) for entry in left]


def _wait_for(file: Path, process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + 600
    while not file.exists():
        if (process.poll() is not None and not file.exists()) or time.monotonic() > until:
            raise RuntimeError(f"the run did not begin: {process.communicate()[0]}")
        time.sleep(0.01)


def _kind(line: str) -> str:
    """Return the kind of a process by its command line; a fork has its parent's."""
    if "conformance.ranks.fork_server" in line:
        return "guard, fork server or rank"
    if "resource_tracker" in line:
        return "resource tracker"
    return "child of a rank" if "time.sleep" in line else "worker"
