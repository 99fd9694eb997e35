"""Process that has imported pytest, and torch if it is asked to, and forks copies of itself: runs, and their workers.

Without workers, a run takes a third of a second instead of two. A worker that needs PyTorch's database of operators
takes as long, instead of eight.

It prints an empty line when it listens. For a run, it reads one JSON object a line, ``{"arguments": […], "cwd": …,
"environment": {…}, "output": …, "workers": …}``, where ``workers`` is the socket that forks them or "", and answers
with two lines: the copy's process id, and its exit status. For a process of Python, it takes a task at its socket, as
forked.py sends it. Nothing here touches a device or imports a module of the project, so every copy goes on as a new
process would.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from _pytest.config import default_plugins

#: What takes a controller longest to import. Pytest itself imports plugins and suites: it rewrites their assertions.
IMPORTED = ("pytest", *(f"_pytest.{name}" for name in default_plugins), "tabulate", "junitparser", "jinja2")

FORKED = str(Path(__file__).with_name("forked.py"))


def main() -> int:
    """Serve until standard input ends. In a copy, return the status of its run."""
    # As the plugin sets them before a run imports torch.
    os.environ.update(TORCH_DEVICE_BACKEND_AUTOLOAD="0", KINETO_LOG_LEVEL="99", OMP_WAIT_POLICY="PASSIVE")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(sys.argv[1])
    listener.listen()
    print(flush=True)
    for name in (*IMPORTED, *sys.argv[2:]):
        importlib.import_module(name)
    # A copy does not look for garbage in what it shares with this process.
    gc.collect()
    gc.freeze()
    while True:
        for ready in select.select([sys.stdin, listener], [], [])[0]:
            if ready is listener:
                _fork_waiter(listener)
            elif line := sys.stdin.readline():
                _fork_run(json.loads(line), listener)
            else:
                return 0


def _fork_run(task: dict[str, Any], listener: socket.socket) -> None:
    """Fork a run of pytest, and wait until it ends."""
    output = os.open(task["output"], os.O_WRONLY)
    child = os.fork()
    if not child:
        listener.close()
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.setsid()
        _become(task, (nothing, output, output), task["cwd"])
        _leave(_run, task)
    os.close(output)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _fork_waiter(listener: socket.socket) -> None:
    """Fork a process that waits for another, which is a process of Python."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    connection, _ = listener.accept()
    if os.fork():
        connection.close()
        return
    listener.close()
    size, files, _, _ = socket.recv_fds(connection, 8, 3)
    with connection.makefile("rb") as words:
        task = json.loads(words.read(int.from_bytes(size, "big")))
    child = os.fork()
    if not child:
        connection.close()
        if task["session"]:
            os.setsid()
        _become(task, tuple(files), "")
        _leave(_python, task["arguments"])
    for number in (0, 1, 2, *files):
        os.close(number)
    connection.sendall(f"{child}\n".encode())
    ended = os.pidfd_open(child)
    if ended not in select.select([connection, ended], [], [])[0]:
        os.kill(child, signal.SIGKILL)  # whoever asked for it has died
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with contextlib.suppress(OSError):
        connection.sendall(f"{status}\n".encode())
    os._exit(0)


def _become(task: dict[str, Any], files: tuple[int, ...], folder: str) -> None:
    """Have the task's files, folder, variables and module path, of which ``folder`` is the first."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, file in enumerate(files):
        os.dup2(file, number)
    for file in {*files} - {0, 1, 2}:
        os.close(file)
    os.chdir(task["cwd"])
    os.environ.clear()
    os.environ.update(task["environment"])
    sys.path[:1] = [folder, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]


def _run(task: dict[str, Any]) -> int:
    """Do what ``python -m pytest`` does."""
    import pytest

    if task["workers"]:
        # By its path: the module path is that of the run.
        runpy.run_path(FORKED)["fork_workers"](task["workers"])
    sys.argv = [pytest.__file__, *task["arguments"]]
    return int(pytest.main(task["arguments"]))


def _python(arguments: list[str]) -> int:
    """Do what ``python [-u] -c PROGRAM`` and ``python -m MODULE`` do."""
    if arguments[0] == "-u":
        arguments = arguments[1:]
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    how, what, *sys.argv[1:] = arguments
    sys.argv[0] = how
    if how == "-m":
        sys.path[0] = str(Path.cwd())
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        module = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(what, module.__dict__)
    return 0


def _leave(act: Callable[[Any], int], what: Any) -> NoReturn:
    """Act, and end as the interpreter ends, but leave its modules to the kernel: they take a third of a run."""
    try:
        status = act(what)
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status & 0xFF)


if __name__ == "__main__":
    sys.exit(main())
