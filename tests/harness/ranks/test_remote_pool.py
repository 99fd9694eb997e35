"""Tests of ranks from torchrun: errors of the connection are one sentence, and the ranks behave like the pool's."""

from __future__ import annotations

import contextlib
import shutil
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from conformance.base.errors import UsageError
from conformance.ranks import remote_agent
from conformance.ranks import rendezvous as rendezvous
from conformance.ranks.channel import Channel, Closed, Hello
from conformance.ranks.remote_pool import RemotePool
from tests.acceptance.running import run
from tests.harness.ranks.test_torture import leftovers
from tests.harness.ranks.torchrun import started

HERE = Path(__file__).parent
PASS, TOO_FEW = ("pass", "native"), ("skip", "environment")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, str]:
    """Return a store like torchrun's, with short timeouts, and its address."""
    monkeypatch.setattr(rendezvous, "TIMEOUT", 0.3)
    port = free_port()
    return rendezvous.open_store("127.0.0.1", port, serve=True), f"127.0.0.1:{port}"


def numbers(rank: int, world_size: int) -> dict[str, int]:
    return {"RANK": rank, "WORLD_SIZE": world_size, "LOCAL_RANK": rank, "GROUP_RANK": 0}


@pytest.mark.parametrize("endpoint", ["nowhere", ":29400", "host:", "host:port", "host:0", "host:65536"])
def test_what_is_no_address_is_refused(endpoint: str) -> None:
    with pytest.raises(UsageError, match="expected HOST:PORT"):
        rendezvous.parsed(endpoint)


def test_where_nobody_answers(store: tuple[Any, str]) -> None:
    port = free_port()

    with pytest.raises(UsageError, match=f"127.0.0.1:{port}: no answer within .*refused.*torchrun --nnodes"):
        rendezvous.agents_at(f"127.0.0.1:{port}")


def test_where_somebody_else_answers(store: tuple[Any, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=hang_up_on_all, args=(listener,), daemon=True).start()

        with pytest.raises(UsageError, match="the program that answers is no store of torchrun"):
            rendezvous.agents_at(f"127.0.0.1:{listener.getsockname()[1]}")


def hang_up_on_all(listener: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it was closed
        while True:
            listener.accept()[0].close()


def test_a_rendezvous_to_which_no_rank_has_come(store: tuple[Any, str]) -> None:
    with pytest.raises(UsageError, match="no rank has connected within"):
        rendezvous.agents_at(store[1])


def test_a_rendezvous_to_which_too_few_have_come(store: tuple[Any, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        rendezvous.publish(store[0], numbers(1, 3), listener)

    with pytest.raises(UsageError, match=r"1 of 3 ranks have connected to .*; missing: 0, 2"):
        rendezvous.agents_at(store[1])


def test_a_rank_that_cannot_be_reached(store: tuple[Any, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        rendezvous.publish(store[0], numbers(0, 1), listener)

    with pytest.raises(UsageError, match=r"rank 0 listens at .* but cannot be reached: Connection refused"):
        RemotePool(Hello("cpu", None, [], 0, 0), store[1], own_devices=False)


@pytest.mark.parametrize("environment", [{}, {"RANK": "0"}], ids=len)
def test_who_starts_ranks_without_torchrun_is_told(environment: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="torchrun has to start"):
        rendezvous.from_torchrun(environment)


@pytest.mark.parametrize("wrong", [b"", b"GET / HTTP/1.1\r\n\r\n", None], ids=["silence", "another protocol", "token"])
def test_who_does_not_know_the_token_is_turned_away(wrong: bytes | None) -> None:
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        intruder, driver = (
            Channel(stack.enter_context(socket.create_connection(listener.getsockname()))) for _ in range(2)
        )
        if wrong is None:
            intruder.send({"kind": "driver", "token": "guessed"})
        else:
            intruder.connection.sendall(wrong)
            intruder.connection.shutdown(socket.SHUT_WR)
        driver.send({"kind": "driver", "token": "right"})

        served = remote_agent._client(listener, "right")

        stack.callback(served.close)
        served.send({"kind": "hello"})
        assert driver.receive() == [{"kind": "hello"}]
        with pytest.raises(Closed):
            intruder.receive()


@pytest.fixture(scope="module")
def rank_slots() -> Callable[[ExitStack, Path], tuple[str, list[Any]]]:
    """Return a function that starts two ranks as torchrun does, without the time to import torchrun."""

    def start(stack: ExitStack, folder: Path) -> tuple[str, list[Any]]:
        port = str(free_port())
        words = [sys.executable, "-m", "conformance.ranks"]
        return f"127.0.0.1:{port}", [
            stack.enter_context(
                started(words, folder, MASTER_ADDR="127.0.0.1", MASTER_PORT=port, MARK_OF_THIS_RUN=str(folder),
                        **{name: str(value) for name, value in numbers(rank, 2).items()})
            )
            for rank in (0, 1)
        ]  # fmt: skip

    return start


@pytest.mark.long
def test_cases_on_ranks_of_torchrun(tmp_path: Path, rank_slots: Callable[..., tuple[str, list[Any]]]) -> None:
    tests = shutil.copy(HERE / "host_cases.py", tmp_path / "test_host_cases.py")
    with ExitStack() as stack:
        endpoint, both = rank_slots(stack, tmp_path)
        found = run("--accelerator=cpu", "--tb=short", "-n0", str(tests), f"--ranks-from={endpoint}", cwd=tmp_path)
        statuses = [launcher.status(30) for launcher in both]
        said = "".join(launcher.said() for launcher in both)

    assert found.verdicts == {
        **{f"hosts.{name}[{n}-2]": PASS for name in ("sum", "after") for n in "01"},
        **{f"hosts.{name}[{n}-4]": TOO_FEW for name in ("sum", "after") for n in "01"},
        "hosts.raises": ("fail", "raised"),
        "hosts.dies": ("fail", "crash"),
        "hosts.sleeps": ("fail", "hang"),
        "hosts.many": TOO_FEW,
        "hosts.loses_its_host": PASS,
    }, found.output
    assert "4 ranks are needed, and torchrun provides 2" in found.messages["hosts.after[0-4]"]
    assert "rank 1 was killed by SIGKILL" in found.messages["hosts.dies"]
    assert "in test_sleeps" in found.output, "the stacks that the agent has sent"
    assert said == f"2 ranks: pytest … --ranks-from {endpoint}\n"
    assert statuses == [0, 0]
    assert leftovers(str(tmp_path)) == []


def test_ranks_of_torchrun_serve_one_process(tmp_path: Path) -> None:
    found = run("--accelerator=cpu", "--ranks-from=127.0.0.1:1", "-n2", cwd=tmp_path)

    assert found.status == 4
    assert found.output.strip() == "ERROR: --ranks-from needs a run in one process: leave out -n, or give -n0."
