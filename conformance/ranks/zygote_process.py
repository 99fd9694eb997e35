"""The zygote as the pool sees it: the guard's process, the zygote's channel, and what it says on stderr."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile

from conformance.child_python import child_python
from conformance.ranks.channel import Channel

PROGRAM = "from conformance.ranks.guard import main; main()"
_CLOSE_PATIENCE = 5.0
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class ZygoteProcess:
    """Started at once; ``up`` is set when it has said that it can fork."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        # Libraries that start threads when they are imported would make the fork unsafe. Ranks share the cores anyway.
        environment = {**os.environ, **dict.fromkeys(_THREADS, "1")}
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
