"""Runs pytest in forked copies of a process that has imported pytest, and torch for runs that need it at once.

Without workers, a run takes a third of a second instead of two.

Reads one JSON object a line, ``{"arguments": […], "cwd": …, "environment": {…}, "output": …}``, and answers with two
lines: the copy's process id, and its exit status. Nothing here touches a device or imports a module of the project, so
every copy goes on as a new process would.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import signal
import sys
import threading
from typing import Any, NoReturn

from _pytest.config import default_plugins

#: What takes a controller longest to import. Pytest itself imports plugins and suites: it rewrites their assertions.
IMPORTED = ("pytest", *(f"_pytest.{name}" for name in default_plugins), "tabulate", "junitparser", "jinja2")


def main() -> int:
    """Serve until standard input ends. In a copy, return the status of its run."""
    # As the plugin sets them before a run imports torch.
    os.environ.update(TORCH_DEVICE_BACKEND_AUTOLOAD="0", KINETO_LOG_LEVEL="99")
    for name in (*IMPORTED, *sys.argv[1:]):
        importlib.import_module(name)
    # A copy does not look for garbage in what it shares with this process.
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        task = json.loads(line)
        output = os.open(task["output"], os.O_WRONLY)
        child = os.fork()
        if not child:
            _leave(_run(task, output))
        os.close(output)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    return 0


def _run(task: dict[str, Any], output: int) -> int:
    """Become what ``python -m pytest`` is, in a session of its own, and return its status."""
    import pytest

    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, file in enumerate((nothing, output, output)):
        os.dup2(file, number)
    os.close(nothing)
    os.close(output)
    os.chdir(task["cwd"])
    os.environ.clear()
    os.environ.update(task["environment"])
    sys.path[:1] = [task["cwd"], *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    sys.argv = [pytest.__file__, *task["arguments"]]
    return int(pytest.main(task["arguments"]))


def _leave(status: int) -> NoReturn:
    """End a copy as the interpreter ends, but leave its modules to the kernel: they take a third of a run."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    sys.exit(main())
