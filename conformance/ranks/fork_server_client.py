"""Client of the fork server: the guard's process, the channel, and what they print to stderr."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile

from conformance.process.python import child_python
from conformance.ranks.channel import Channel

_PROGRAM = "from conformance.ranks.fork_server import guard; guard()"
#: Seconds that the fork server may take to end before it is killed.
_CLOSE_TIMEOUT = 5.0
#: A library that starts threads when it is imported makes forks unsafe. Ranks share the cores anyway.
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
#: glibc then keeps up to 128 MiB of freed memory in each rank. Collectives use the same buffer sizes in case after
#: case, and clearing fresh pages for them took a fifth of the time of area comm.
_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(128 << 20)}


class ForkServerClient:
    """Connection to a fork server, which starts at once. ``up`` is set when it can fork, ``dead`` when it is gone."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        environment = {**_MEMORY, **os.environ, **_ONE_THREAD}
        # Ranks of one host talk over the loopback; without this variable gloo asks the network for the host's name.
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
        environment.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        # Each rank that compiles would start a pool of processes that import torch.
        environment.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
        with theirs:
            self.process = subprocess.Popen(  # noqa: S603 - this interpreter, with our own program
                child_python(_PROGRAM, str(theirs.fileno())),
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                env=environment,
                start_new_session=True,
            )
        self.channel = Channel(ours)
        self.up = self.dead = False
        self.pid = 0  # set when it is up

    def last_output(self) -> str:
        """Return the last line of its output, or its exit status."""
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit status {self.process.poll()}, without output"

    def close(self) -> None:
        """End the fork server, and its ranks with it."""
        self.channel.close()
        try:
            self.process.wait(_CLOSE_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._output.close()
