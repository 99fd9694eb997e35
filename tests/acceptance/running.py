"""Runs pytest as a user does, in a process of its own, and reads what it left."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from conformance.reports.model import Report
from conformance.reports.report_json import read_report

from .forked import Forked

HERE = Path(__file__).parent
#: Words of a run without plugins that serve this project's own tests. To import hypothesis takes a tenth of a run.
PLAIN = ("-p", "no:randomly", "-p", "no:hypothesispytest", "-p", "no:anyio")
#: Words of every run but those that need pytest's cache.
ALWAYS = (*PLAIN, "-p", "no:cacheprovider")
#: What a process with a device imports. A controller has none, and must not need it.
TORCH = ("torch", "numpy", "mpmath")
#: What the database of operators and PyTorch's own device tests import from elsewhere, for ``imported``.
LIBRARIES = ("torch._inductor.utils", "scipy.signal", "scipy.stats")
#: What takes a run of operators longest to import, for ``imported``.
DATABASE = (*LIBRARIES, "torch.testing._internal.common_methods_invocations")
#: Modules of processes that others start from, for they need them too.
SHARED = ((), TORCH, (*TORCH, *LIBRARIES))

#: Whether a process can be forked, and its end be awaited beside other events.
FORKS = hasattr(os, "fork") and hasattr(os, "pidfd_open")


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

    A run is a copy of a process that has imported pytest, and its workers are copies of one that has imported torch
    too, and the modules ``imported``. Without workers, the run is. Runs that have to be new processes call ``start``.
    """
    folder = cwd / "conformance-report" / name
    if FORKS:
        device = _preloaded((*TORCH, *imported))
        ran, workers = (device, "") if "-n0" in arguments else (_preloaded(()), device.socket)
        return Run(*ran.run([*always, *arguments], cwd, environment(**more), timeout, workers), folder)
    process = start(*arguments, cwd=cwd, always=always, **more)
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        kill(process)
        raise
    return Run(process.returncode, output, folder)


def python(
    *arguments: str, cwd: Path, timeout: float = 240, imported: tuple[str, ...] = (), **more: str
) -> subprocess.CompletedProcess[str]:
    """Run ``python -c`` or ``python -m`` to its end, with what a run without workers has imported."""
    return child([sys.executable, *arguments], cwd=cwd, env=environment(**more), timeout=timeout, imported=imported)


def child(
    command: Sequence[str],
    *,
    timeout: float | None = None,
    stderr: int | None = None,
    imported: tuple[str, ...] = (),
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """Do what ``subprocess.run`` does with a command of this interpreter that captures its output as text."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        places = {"stdout": out, "stderr": out if stderr == subprocess.STDOUT else err}
        process = started_child(command, imported=imported, **{**options, **places})
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(command, status, out.read(), err.read())


def started_child(
    command: Sequence[str],
    *,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    stdout: Any,
    stderr: Any,
    start_new_session: bool = False,
    imported: tuple[str, ...] = (),
    **_: object,
) -> Any:
    """Do what ``subprocess.Popen`` does with a command of this interpreter that has no input and writes to files."""
    with Path(os.devnull).open() as nothing:
        other = stdout if stderr == subprocess.STDOUT else stderr
        if not FORKS:
            return subprocess.Popen(
                command, cwd=cwd, env=env, stdin=nothing, stdout=stdout, stderr=other,
                start_new_session=start_new_session,
            )  # fmt: skip
        files = (nothing.fileno(), stdout.fileno(), other.fileno())
        server = _preloaded((*TORCH, *imported)).socket
        return Forked(server, command[1:], files, os.fspath(cwd or "."), env, start_new_session)


def dying(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let pytest's children of this process end at their start with status 1, as of a failed case."""
    (folder / "broken_plugin.py").write_text("raise SystemExit('the plugin is broken')\n", encoding="utf-8")
    patch.syspath_prepend(folder)
    patch.setenv("PYTEST_ADDOPTS", "-p broken_plugin")


@contextlib.contextmanager
def forked_children(module: types.ModuleType, *imported: str) -> Iterator[None]:
    """Let children of a module that are of this interpreter be forked, with torch and the modules ``imported``."""
    like = types.SimpleNamespace(**vars(subprocess))
    like.run = functools.partial(child, imported=imported)
    like.Popen = functools.partial(started_child, imported=imported)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "subprocess", like)
        yield


class Preloaded:
    """A process that runs pytest and Python in copies of itself; see preloaded.py. It ends when its input does."""

    def __init__(self, imported: Sequence[str]) -> None:
        self._folder = tempfile.TemporaryDirectory()
        #: Where it forks processes of Python, such as workers; see forked.py.
        self.socket = str(Path(self._folder.name, "socket"))
        program = f"import runpy; runpy.run_path({str(HERE / 'preloaded.py')!r}, run_name='__main__')"
        command = [sys.executable, "-c", program, self.socket, *imported]
        (task, tasks), (answers, answer) = os.pipe(), os.pipe()
        self._process = self._started(command, tuple(imported), (task, answer, 2))
        os.close(task)
        os.close(answer)
        self._tasks, self._answers = os.fdopen(tasks, "w"), os.fdopen(answers)
        self._answers.readline()  # it listens
        atexit.register(self._close)

    def _close(self) -> None:
        self._tasks.close()
        self._answers.close()
        self._process.wait()
        self._folder.cleanup()

    def _started(self, command: list[str], imported: tuple[str, ...], files: tuple[int, int, int]) -> Any:
        """Start the process: anew, or as a copy of the one with most of its modules."""
        shared = [modules for modules in SHARED if len(modules) < len(imported) and imported[: len(modules)] == modules]
        if shared and FORKS:
            return Forked(_preloaded(shared[-1]).socket, command[1:], files, env=environment())
        return subprocess.Popen(command, stdin=files[0], stdout=files[1], env=environment())

    def run(
        self, arguments: list[str], cwd: Path, variables: dict[str, str], timeout: float, workers: str = ""
    ) -> tuple[int, str]:
        """Return the exit status and the output of a run; workers are forked at the socket ``workers``."""
        with tempfile.TemporaryDirectory() as folder:
            # A pipe, as of any child process: it ends when the last process that writes has ended.
            pipe = Path(folder, "output")
            os.mkfifo(pipe)
            output = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
            try:
                task = {"arguments": arguments, "cwd": str(cwd), "environment": variables, "output": str(pipe)}
                task["workers"] = workers
                print(json.dumps(task), file=self._tasks, flush=True)
                text = _read(output, int(self._answers.readline()), timeout)
            finally:
                os.close(output)
        return int(self._answers.readline()), text


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
