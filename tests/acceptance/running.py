"""Runs pytest as a user does, in a process of its own, and reads what it left."""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from conformance.reports.model import Report
from conformance.reports.report_json import read_report

HERE = Path(__file__).parent
#: Words of a run without plugins that serve this project's own tests. To import hypothesis takes a tenth of a run.
PLAIN = ("-p", "no:randomly", "-p", "no:hypothesispytest", "-p", "no:anyio")
#: Words of every run but those that need pytest's cache.
ALWAYS = (*PLAIN, "-p", "no:cacheprovider")
#: What a process with a device imports. A controller has none, and must not need it.
TORCH = ("torch", "numpy", "mpmath")
#: What takes a run of operators longest to import, for ``imported``.
DATABASE = ("torch.testing._internal.common_methods_invocations",)


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


def start(
    *arguments: str, cwd: Path, of: Sequence[str] = (), always: Sequence[str] = ALWAYS, **more: str
) -> subprocess.Popen[str]:
    """Start ``pytest`` with ``arguments`` in a session of its own, as the last words of the command ``of``."""
    return subprocess.Popen(
        [*of, sys.executable, "-m", "pytest", *always, *arguments],
        cwd=cwd,
        env=environment(**more),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        # A shell that starts us in the background has us ignore Ctrl-C, and children would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def run(
    *arguments: str,
    cwd: Path,
    timeout: float = 240,
    name: str = "cpu",
    imported: tuple[str, ...] = (),
    always: Sequence[str] = ALWAYS,
    **more: str,
) -> Run:
    """Run ``pytest`` to its end.

    A run is a copy of a process that has imported pytest. Without workers, it has imported torch too, and the modules
    ``imported``. Runs that have to be new processes call ``start``.
    """
    folder = cwd / "conformance-report" / name
    if hasattr(os, "fork"):
        loaded = (*TORCH, *imported) if "-n0" in arguments else ()
        return Run(*_preloaded(loaded).run([*always, *arguments], cwd, environment(**more), timeout), folder)
    process = start(*arguments, cwd=cwd, always=always, **more)
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        kill(process)
        raise
    return Run(process.returncode, output, folder)


class Preloaded:
    """A process that runs pytest in copies of itself; see preloaded.py."""

    def __init__(self, imported: Sequence[str]) -> None:
        # It ends when its standard input does.
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "preloaded.py"), *imported],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        atexit.register(self._process.communicate)

    def run(self, arguments: list[str], cwd: Path, variables: dict[str, str], timeout: float) -> tuple[int, str]:
        """Return the exit status and the output of a run."""
        assert self._process.stdin
        assert self._process.stdout
        with tempfile.TemporaryDirectory() as folder:
            # A pipe, as of any child process: it ends when the last process that writes has ended.
            pipe = Path(folder, "output")
            os.mkfifo(pipe)
            output = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
            try:
                task = {"arguments": arguments, "cwd": str(cwd), "environment": variables, "output": str(pipe)}
                print(json.dumps(task), file=self._process.stdin, flush=True)
                text = _read(output, int(self._process.stdout.readline()), timeout)
            finally:
                os.close(output)
        return int(self._process.stdout.readline()), text


_preloaded = cache(Preloaded)


def _read(file: int, process: int, timeout: float) -> str:
    """Return all that a process and its children write; kill them and raise TimeoutExpired if it takes too long."""
    until, blocks = time.monotonic() + timeout, [b""]
    while select.select([file], [], [], max(0.0, until - time.monotonic()))[0]:
        block = os.read(file, 1 << 16)
        if not block:
            return b"".join(blocks).decode(errors="replace")
        blocks.append(block)
    os.killpg(process, signal.SIGKILL)
    raise subprocess.TimeoutExpired("pytest", timeout, b"".join(blocks))


def kill(process: subprocess.Popen[str], *, whole_group: bool = True) -> None:
    """``kill -9`` of a run: of all its processes, or of the controller alone."""
    if whole_group:
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.communicate()
