"""Runs pytest in forked copies of a process that has imported everything: a second each, instead of ten.

Reads one JSON object a line, ``{"arguments": […], "cwd": …, "log": …, "bytecode": …}``, and answers each with a line
that holds the exit status. Nothing here touches a device, so every copy starts as a new process would.
"""

from __future__ import annotations

import importlib
import json
import os
import sys

#: What a run imports in any case, and what takes long. pytest itself imports the suites, because it rewrites them.
IMPORTED = (
    "torch",
    "torch.testing._internal.common_methods_invocations",
    "pytest",
    "xdist.plugin",
    "conformance.plugin",
    "conformance.runner.session",
    "conformance.runner.device_host",
    "conformance.runner.controller",
    "conformance.accelerators.registry",
    "conformance.reports.views",
)


def main() -> None:
    for name in IMPORTED:
        importlib.import_module(name)
    print("ready", flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        child = os.fork()
        if child == 0:
            _run(task)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _run(task: dict[str, object]) -> None:
    """In the copy: never returns."""
    import pytest

    os.chdir(str(task["cwd"]))
    log = os.open(str(task["log"]), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    # pytest rewrites the suites' assertions; the copies after the first find that done.
    sys.dont_write_bytecode, sys.pycache_prefix = False, str(task["bytecode"])
    status = int(pytest.main([str(word) for word in task["arguments"]]))  # type: ignore[attr-defined]
    sys.stdout.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
