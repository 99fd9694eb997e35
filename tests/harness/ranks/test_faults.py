"""Tests on a machine that lacks a resource: a clear verdict or none, and the run continues."""

from __future__ import annotations

import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.ranks import pool as pools
from conformance.ranks.channel import Hello, Work
from conformance.ranks.pool import Pool, PoolFailed
from tests.acceptance.running import Run, environment, run

CASES = Path(__file__).with_name("fault_cases.py")
PASS = ("pass", "native")
#: A small /dev/shm of this test's own, filled to the last byte.
FULL = "mount -t tmpfs -o size=256k tmpfs /dev/shm; dd if=/dev/zero of=/dev/shm/full bs=4k 2>/dev/null; "


def may_mount() -> bool:
    command = ["unshare", "--mount", "mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", "/dev/shm"]
    return bool(shutil.which("unshare")) and subprocess.run(command, check=False, capture_output=True).returncode == 0


@pytest.mark.skipif(not may_mount(), reason="needs a mount namespace of its own")
def test_shared_memory_is_full(tmp_path: Path) -> None:
    tests = shutil.copy(CASES, tmp_path / "test_fault_cases.py")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--accelerator=cpu", str(tests), "-n0"]
    whole = ["unshare", "--mount", "sh", "-c", f"{FULL} exec {shlex.join(command)}"]
    finished = subprocess.run(
        whole, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=240, check=False
    )
    found = Run(finished.returncode, finished.stdout, tmp_path / "conformance-report" / "cpu")

    assert found.verdicts == {
        "fault.meets": PASS,
        "fault.shared": ("fail", "crash"),
        "fault.meets_again": PASS,
    }, finished.stdout + finished.stderr
    assert "rank 1 was killed by SIGBUS" in found.messages["fault.shared"]


def test_the_port_that_launchers_use_is_taken(tmp_path: Path) -> None:
    tests = shutil.copy(CASES, tmp_path / "test_fault_cases.py")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        found = run("--accelerator=cpu", str(tests), "-n0", "--case", "fault.meets*", cwd=tmp_path,
                    MASTER_ADDR="127.0.0.1", MASTER_PORT=port)  # fmt: skip

    assert set(found.verdicts.values()) == {PASS}, found.output


def test_no_port_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(98, "Address already in use")

    pool = Pool(Hello("cpu", None, [], 0, 0))
    monkeypatch.setattr(pools.socket, "create_server", refuse)

    with pytest.raises(PoolFailed, match="the ranks' store cannot listen on the loopback: Address already in use"):
        pool.run(Work("", "", "", "", "", 0, 0, 5.0, ""), 2)
    pool.close()


def test_a_loopback_that_is_down_is_one_sentence_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container without a network. The store would wait for five minutes, and again for each case."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(101, "Network is unreachable")

    pool = Pool(Hello("cpu", None, [], 0, 0))
    monkeypatch.setattr(pools.socket, "create_connection", refuse)

    with pytest.raises(PoolFailed, match="cannot reach each other over the loopback: Network is unreachable"):
        pool.run(Work("", "", "", "", "", 0, 0, 5.0, ""), 2)
    pool.close()
