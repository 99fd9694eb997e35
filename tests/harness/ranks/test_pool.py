"""Tests of the pool: it replaces ranks and the fork server, reports failed starts, and close() ends all processes."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from conformance.judging.observation import Seen
from conformance.ranks import fork_server_client
from conformance.ranks import pool as pools
from conformance.ranks.channel import Channel, Closed, Hello, Work
from conformance.ranks.collective_recorder import ARRIVING
from conformance.ranks.device_locks import LockedDevices
from conformance.ranks.local_rank import LocalRank
from conformance.ranks.pool import Pool, PoolFailed, RankStart
from conformance.runner.rank_cases import rank_imports

BODIES = Path(__file__).with_name("pool_bodies.py")


@pytest.fixture(scope="module")
def warm() -> Iterator[Pool]:
    pool = new_pool()
    yield pool
    pool.close()


def new_pool(spec: str = "cpu") -> Pool:
    return Pool(Hello(spec, None, [], 0, 0))


CASES = {
    "test_child": "pool.child",
    "test_batch": "pool.batch",
    "test_imported": "pool.imported",
    "test_originals": "pool.originals",
    "test_thread": "pool.thread",
}


def work(name: str = "test_sum") -> Work:
    case_id = CASES.get(name, "pool.sum")
    return Work("", case_id, "tests.harness.ranks.pool_bodies", str(BODIES), name, 0, 0, 30.0, "")


def rank_0(pool: Pool, world_size: int = 2) -> int:
    ended = pool.run(work(), world_size)
    assert ended.outcome.observation.seen is Seen.RIGHT, ended.outcome
    assert ended.count == world_size
    return int(ended.metrics["pid"])


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    until = time.monotonic() + 10
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.01)


def fork_server(pool: Pool) -> Any:
    assert pool._fork_server is not None
    return pool._fork_server.process


def test_ranks_serve_every_world_size(warm: Pool) -> None:
    first = rank_0(warm)

    assert [rank_0(warm, world) for world in (1, 3, 2, 4)] == [first] * 4


def test_recorded_calls_are_still_the_calls_that_torch_knows(warm: Pool) -> None:
    outcome = warm.run(work("test_batch"), 2).outcome

    assert outcome.observation.seen is Seen.RIGHT, outcome


def test_an_idle_rank_that_was_killed_is_replaced(warm: Pool) -> None:
    victim = rank_0(warm)

    kill(victim)

    assert rank_0(warm) != victim


def test_a_rank_that_dies_as_it_gets_work_costs_no_case(warm: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    victims = [rank_0(warm)]
    take = warm._take

    def take_and_kill(*arguments: Any) -> Any:
        taken = take(*arguments)
        if victims:
            os.kill(victims.pop(), signal.SIGKILL)
        return taken

    monkeypatch.setattr(warm, "_take", take_and_kill)

    assert rank_0(warm)
    assert not victims


@pytest.mark.parametrize("who", ["fork_server", "guard"])
def test_who_forks_ranks_is_replaced_and_takes_along_what_they_started(warm: Pool, who: str) -> None:
    rank, guard = rank_0(warm), fork_server(warm).pid
    child = int(warm.run(work("test_child"), 2).metrics["child"])
    assert warm._fork_server is not None
    old = {"fork_server": warm._fork_server.pid, "guard": guard}[who]
    assert alive(child)

    kill(old)

    assert rank_0(warm) != rank
    assert fork_server(warm).pid != guard
    assert not alive(rank)
    assert not alive(child)


def test_a_rank_that_a_dead_fork_server_cannot_fork_leaves_no_descriptor() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours:
        before = set(os.listdir("/proc/self/fd"))
        with pytest.raises(Closed):
            LocalRank.fork(0, Channel(ours), Hello("cpu", None, [], 0, 0))
        assert set(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("before", "stage"), [('@case("pool.sum"', ARRIVING), ("    total = torch.ones(3)", "in the body")]
)
def test_a_case_whose_ranks_died_with_their_fork_server_runs_again(
    warm: Pool, before: str, stage: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On a busy machine the ranks take up the next case before they die with the fork server."""
    flag = tmp_path / "wait"
    flag.touch()
    bodies, indent = tmp_path / f"slow_bodies_{len(stage)}.py", " " * (len(before) - len(before.lstrip()))
    wait = f"{indent}while __import__('pathlib').Path({str(flag)!r}).exists():\n{indent}    time.sleep(0.01)\n"
    bodies.write_text(BODIES.read_text().replace(before, wait + before, 1))
    rank_0(warm)
    follow = pools.Execution.follow

    def kill_and_follow(execution: Any, deadline: float) -> Any:
        ranks = [participant.process for participant in execution._participants]
        while flag.exists() and not all(rank.position().stage == stage for rank in ranks):
            time.sleep(0.01)
        if flag.exists():
            kill(fork_server(warm).pid)
            flag.unlink()
        return follow(execution, deadline)

    monkeypatch.setattr(pools.Execution, "follow", kill_and_follow)
    ended = warm.run(replace(work(), module=bodies.stem, file=str(bodies)), 2)

    assert ended.outcome.observation.seen is Seen.RIGHT, ended.outcome


def test_a_rank_uses_pytorch_as_it_is(warm: Pool) -> None:
    """No class of torch.distributed is replaced in a group whose verdict counts."""
    metrics = warm.run(work("test_originals"), 2).metrics

    assert metrics["replaced"] == ""


def test_ranks_are_recycled(warm: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "_MOST_CASES", 3)

    seen = [rank_0(warm) for _ in range(12)]

    assert len(set(seen)) >= 4


def test_a_process_keeps_its_rank(warm: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries keep what they compute for a rank: as another rank, the process would give another rank's shards."""
    warm._discard(list(warm._idle))
    monkeypatch.setattr(pools, "_MOST_CASES", 3)
    rank_0(warm, 3)
    third = warm._idle[2]

    seen = {rank_0(warm, 2) for _ in range(4)}

    assert len(seen) == 2, "the first ranks were not replaced"
    assert (third.cases, third.place) == (1, (2, None)), "the third rank served in the place of another"
    rank_0(warm, 3)
    assert third.cases == 2


def test_a_process_keeps_its_device(warm: Pool) -> None:
    """Libraries keep what they compute for a device: with another one, they would use the device of before."""

    def on(*devices: int) -> int:
        with contextlib.ExitStack() as opened:
            locks = tuple(opened.enter_context(Path(os.devnull).open()).fileno() for _ in devices)
            ended = warm.run(work(), len(devices), devices=LockedDevices(devices, locks))
        assert ended.outcome.observation.seen is Seen.RIGHT, ended.outcome
        return int(ended.metrics["pid"])

    first, second = on(0, 1), on(2, 3)

    assert first != second, "one process ran on two devices"
    assert [on(0, 1), on(2, 3), on(0, 3)] == [first, second, first]


def test_few_idle_ranks_are_kept(warm: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may hold memory of a device."""
    monkeypatch.setattr(pools, "_MOST_IDLE", 2)
    rank_0(warm, 4)
    assert len(warm._idle) == 4, "as many as the last case had"

    rank_0(warm, 2)

    assert [rank.place for rank in warm._idle] == [(0, None), (1, None)]


def test_what_takes_long_to_import_is_imported_once_for_all_ranks_from_then_on(warm: Pool) -> None:
    wanted = RankStart(imports=frozenset({"colorsys", "no_such_module", "tests.harness.ranks.raises"}))

    before = warm.run(work("test_imported"), 2).metrics
    after = [warm.run(work("test_imported"), 2, start).metrics for start in (wanted, RankStart(), wanted)]

    assert (before["imported"], [metrics["imported"] for metrics in after]) == (0, [1, 1, 1])
    assert before["pid"] != after[0]["pid"], "a rank that was forked before served on"
    assert len({metrics["pid"] for metrics in after}) == 1
    assert fork_server(warm).poll() is None


def test_the_fork_server_imports_what_modules_list_and_modules_of_this_suite() -> None:
    listing, plain, other = (ModuleType(name) for name in ("conformance.suites.a", "conformance.suites.b", "acme.c"))
    listing.RANK_IMPORTS = ("colorsys",)  # type: ignore[attr-defined]
    other.RANK_IMPORTS = ("torch._dynamo",)  # type: ignore[attr-defined]

    assert rank_imports([listing, plain, None, other, plain]) == {
        "colorsys", "conformance.suites.a", "conformance.suites.b", "torch._dynamo"
    }  # fmt: skip


def test_ranks_of_a_failed_case_are_replaced(warm: Pool) -> None:
    rank = rank_0(warm)

    ended = warm.run(work("no_such_function"), 2)

    assert ended.outcome.observation.seen is Seen.RAISED
    assert "no_such_function" in ended.outcome.observation.message
    assert rank_0(warm) != rank


def test_descriptors_do_not_pile_up(warm: Pool) -> None:
    rank_0(warm, 3)
    gc.collect()  # what earlier tests have left may go now, and not in between
    before = len(os.listdir("/proc/self/fd"))

    for _ in range(5):
        warm.run(work("no_such_function"), 3)
    rank_0(warm, 3)

    assert len(os.listdir("/proc/self/fd")) <= before


def test_an_accelerator_that_does_not_load_on_ranks_is_one_sentence() -> None:
    pool = new_pool("tests.no_such_module:THING")

    with pytest.raises(PoolFailed, match=r"a rank cannot load the accelerator: .*no_such_module"):
        pool.run(work(), 2)
    pool.close()


def test_a_fork_server_that_does_not_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_server_client, "_PROGRAM", "raise SystemExit('no torch today')")
    pool = new_pool()

    with pytest.raises(PoolFailed, match="did not start: no torch today"):
        pool.run(work(), 2)
    pool.close()


def test_closing_leaves_no_process() -> None:
    pool = new_pool()
    rank, process = rank_0(pool), fork_server(pool)

    pool.close()

    assert not alive(rank)
    assert process.returncode == 0
