"""Runs pytest as a user does, in a process of its own, and reads what it left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from conformance.reports.model import Report
from conformance.reports.report_json import read_report

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Run:
    """A finished run."""

    status: int
    output: str
    folder: Path

    @property
    def report(self) -> Report:
        return read_report(self.folder / "report.json")

    @property
    def verdicts(self) -> dict[str, tuple[str, str]]:
        return {case.id: (case.outcome.value, case.reason.value) for case in self.report.cases}

    @property
    def messages(self) -> dict[str, str]:
        return {case.id: case.message for case in self.report.cases}


def environment(**more: str) -> dict[str, str]:
    """The environment of a user: none of the outer pytest's or xdist's variables.

    Processes keep their bytecode, above all the assertions that pytest has rewritten: the next run needs a fifth less.
    """
    outer = ("PYTEST_", "TOX_", "COV_", "PYTHONDONTWRITEBYTECODE")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(outer)}
    return {**kept, "OMP_NUM_THREADS": "1", **more}


def start(*arguments: str, cwd: Path, of: Sequence[str] = (), **more: str) -> subprocess.Popen[str]:
    """Start ``pytest`` with ``arguments`` in a session of its own, as the last words of the command ``of``."""
    return subprocess.Popen(
        [*of, sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:randomly", *arguments],
        cwd=cwd,
        env=environment(**more),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        # A shell that starts us in the background has us ignore Ctrl-C, and children would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def run(*arguments: str, cwd: Path, timeout: float = 240, name: str = "cpu", **more: str) -> Run:
    """Run ``pytest`` to its end."""
    process = start(*arguments, cwd=cwd, **more)
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        kill(process)
        raise
    return Run(process.returncode, output, cwd / "conformance-report" / name)


def kill(process: subprocess.Popen[str], *, whole_group: bool = True) -> None:
    """``kill -9`` of a run: of all its processes, or of the controller alone."""
    if whole_group:
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.communicate()
