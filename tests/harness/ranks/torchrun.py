"""Ranks that torchrun provides for tests, on this host or in network namespaces of it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.acceptance.running import environment

#: Of the rendezvous, on a host that is a network namespace.
PORT = 29400


@dataclass(frozen=True)
class Torchrun:
    """Running torchrun and its output."""

    process: subprocess.Popen[bytes]
    log: IO[bytes]

    def said(self) -> str:
        self.log.seek(0)
        return self.log.read().decode()

    def status(self, timeout: float) -> int:
        """Return the exit status once torchrun ends by itself; TimeoutExpired after ``timeout`` seconds."""
        return self.process.wait(timeout)


def command(nodes: int, node: int, ranks: int, address: str, port: int) -> list[str]:
    return [
        sys.executable, "-m", "torch.distributed.run", f"--nnodes={nodes}", f"--node-rank={node}",
        f"--nproc-per-node={ranks}", f"--master-addr={address}", f"--master-port={port}", "-m", "conformance.ranks",
    ]  # fmt: skip


@contextlib.contextmanager
def started(words: list[str], cwd: Path, **more: str) -> Iterator[Torchrun]:
    """Run torchrun in its own session during the context; kill what is left of it afterwards."""
    # Without a folder for logs, torchrun makes one in the temporary folder of the machine and leaves it there.
    variables = environment(PET_LOG_DIR=str(cwd / "logs-of-torchrun"), **more)
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            words, cwd=cwd, env=variables, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            yield Torchrun(process, log)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@contextlib.contextmanager
def one_host(ranks: int, cwd: Path, **more: str) -> Iterator[tuple[str, Torchrun]]:
    """Run torchrun on this host; give the address for --ranks-from and the process."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with started(command(1, 0, ranks, "127.0.0.1", port), cwd, **more) as torchrun:
        yield f"127.0.0.1:{port}", torchrun
