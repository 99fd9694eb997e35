"""Processes of Python that a preloaded process forks: they need no time to import what it has imported."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class Forked:
    """A running ``python -c`` or ``python -m``, with what callers of ``subprocess.Popen`` use.

    It ends when this process does. ``server`` is the socket of a preloaded process; see preloaded.py.
    """

    def __init__(
        self,
        server: str,
        arguments: Sequence[str],
        files: tuple[int, int, int] = (0, 1, 2),
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        session: bool = False,
    ) -> None:
        self.args = list(arguments)
        self.returncode: int | None = None
        variables = dict(os.environ if env is None else env)
        folder = str(Path(cwd or ".").absolute())
        told = {"arguments": self.args, "cwd": folder, "environment": variables, "session": session}
        task = json.dumps(told).encode()
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(server)
        socket.send_fds(self._connection, [len(task).to_bytes(8, "big")], files)
        self._connection.sendall(task)
        self._answers = self._connection.makefile("r")
        self.pid = int(self._answers.readline())

    def poll(self) -> int | None:
        """Return the exit status, or None of a process that runs."""
        if self.returncode is None and select.select([self._connection], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status; raise TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = int(self._answers.readline())
            self.forget()
        return self.returncode

    def forget(self) -> None:
        """Let go of the process, as the death of this one would: it is killed if it runs."""
        self._answers.close()
        self._connection.close()

    def kill(self) -> None:
        """Kill the process if it runs."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def fork_workers(server: str) -> None:
    """Let xdist's workers of this process be forked at ``server``."""
    from execnet import gateway_io
    from execnet.gateway_base import Popen2IO

    class IO(gateway_io.Popen2IOMaster):
        def __init__(self, args: list[str], execmodel: Any) -> None:
            (input, ours), (theirs, output) = os.pipe(), os.pipe()
            self.popen = Forked(server, args[1:], (input, output, 2))
            os.close(input)
            os.close(output)
            Popen2IO.__init__(self, os.fdopen(ours, "wb"), os.fdopen(theirs, "rb"), execmodel=execmodel)

    gateway_io.Popen2IOMaster = IO  # type: ignore[misc]
