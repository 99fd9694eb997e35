"""Jobs of torchrun: a port that another program takes is no failure of a device."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from conformance.suites.launcher import jobs

#: A rank whose port is taken in the first two starts, and free in the third.
PROGRAM = """
import pathlib
count = pathlib.Path(__file__).with_name("starts.txt")
starts = int(count.read_text()) + 1 if count.exists() else 1
count.write_text(str(starts))
if starts < 3:
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        first.listen()
        second.bind(first.getsockname())
report(starts=starts)
"""


def test_a_job_whose_port_is_taken_starts_again(tmp_path: Path) -> None:
    job = jobs.launch(tmp_path, "import socket\n" + PROGRAM, 1, forked=True)

    assert (job.status, job.facts[0, 0]["starts"]) == (0, 3), job.output


@pytest.mark.parametrize("number", [2, 3])
def test_what_else_fails_fails_at_once(tmp_path: Path, number: int) -> None:
    job = jobs.launch(tmp_path, f"raise SystemExit({number})", 1, forked=True)

    assert job.status != 0


def test_the_words_of_a_taken_port() -> None:
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        first.listen()
        with pytest.raises(OSError, match="in use") as caught:
            second.bind(first.getsockname())
    assert jobs.is_of_a_taken_port(str(caught.value))
    assert jobs.is_of_a_taken_port("listen failed. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE")
    assert not jobs.is_of_a_taken_port("ConnectionRefusedError: [Errno 111] Connection refused")
