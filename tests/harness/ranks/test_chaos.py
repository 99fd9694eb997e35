"""Tests of the chaos runs' search for leftovers: it finds each kind, and nothing else."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from tests.harness.ranks import chaos


def test_a_port_is_left_while_somebody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        sockets = chaos.sockets_of([os.getpid()])

        assert chaos.ports(sockets) == [f"listening socket 0100007F:{port:04X}"]

    assert chaos.ports(sockets) == []


def test_a_port_of_somebody_else_is_none_of_the_run() -> None:
    with socket.create_server(("127.0.0.1", 0)):
        assert chaos.ports(chaos.sockets_of([])) == []


def test_a_segment_is_left_once(tmp_path: Path) -> None:
    Path("/dev/shm", f"{tmp_path.name}-7").touch()
    other = tmp_path.with_name(f"{tmp_path.name}x")

    assert chaos.segments(other) == []
    assert chaos.segments(tmp_path) == [f"/dev/shm/{tmp_path.name}-7"]
    assert chaos.segments(tmp_path) == []


def test_a_marked_process_is_left_until_it_is_ended(tmp_path: Path) -> None:
    program = "import time; print('up', flush=True); time.sleep(600)"
    environment = {**os.environ, "MARK": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()

        assert ["time.sleep" in line for line in chaos.end(str(tmp_path))] == [True]

    assert process.returncode == -9
