"""The zygote as the pool sees it: the guard's process, the zygote's channel, and what it says on stderr."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile

from conformance.process.python import child_python
from conformance.ranks.channel import Channel

PROGRAM = "from conformance.ranks.guard import main; main()"
_CLOSE_PATIENCE = 5.0
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
#: Buffers of collectives are of the same sizes in case after case. What one gave back is kept for the next (glibc), up
#: to 128 MiB in each rank: having the system clear fresh pages took a fifth of area comm.
_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(128 << 20)}


class ZygoteProcess:
    """Started at once; ``up`` is set when it has said that it can fork."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        # Libraries that start threads when they are imported would make the fork unsafe. Ranks share the cores anyway.
        environment = {**_MEMORY, **os.environ, **dict.fromkeys(_THREADS, "1")}
        # Ranks of one host talk over the loopback; without it gloo asks the network who this host is.
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
        environment.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        with theirs:
            self.process = subprocess.Popen(  # noqa: S603 - this interpreter, with our own program
                child_python(PROGRAM, str(theirs.fileno())),
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=self._words,
                stderr=self._words,
                env=environment,
                start_new_session=True,
            )
        self.channel = Channel(ours)
        self.up = self.dead = False
        self.pid = 0  # once it is up

    def last_words(self) -> str:
        self._words.seek(0)
        lines = self._words.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit status {self.process.poll()}, and no word"

    def close(self) -> None:
        """Its ranks end with it."""
        self.channel.close()
        try:
            self.process.wait(_CLOSE_PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._words.close()
