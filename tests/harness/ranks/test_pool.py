"""The pool by itself: ranks and the zygote are replaced, starts that fail are one sentence, closing leaves nothing."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from conformance.ranks import fork_server_client as zygote_process
from conformance.ranks import pool as pools
from conformance.ranks.collective_recorder import AHEAD
from conformance.ranks.gloo import addresses, threads_that_wait
from conformance.ranks.messages import Hello, Work
from conformance.ranks.pool import Next, Pool, PoolFailed, Start
from conformance.verdicts import Seen

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
    "test_groups": "pool.groups",
    "test_thread": "pool.thread",
}


def work(name: str = "test_sum") -> Work:
    case_id = CASES.get(name, "pool.sum")
    return Work("", case_id, "tests.harness.ranks.pool_bodies", str(BODIES), name, 0, 0, 30.0, "")


def rank_0(pool: Pool, world_size: int = 2) -> int:
    ended = pool.run(work(), world_size)
    assert ended.finish.observation.seen is Seen.RIGHT, ended.finish
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


def zygote(pool: Pool) -> Any:
    assert pool._zygote is not None
    return pool._zygote.process


def test_ranks_serve_every_world_size(warm: Pool) -> None:
    first = rank_0(warm)

    assert [rank_0(warm, world) for world in (1, 3, 2, 4)] == [first] * 4


def test_recorded_calls_are_still_the_calls_that_torch_knows(warm: Pool) -> None:
    finish = warm.run(work("test_batch"), 2).finish

    assert finish.observation.seen is Seen.RIGHT, finish


def test_an_idle_rank_that_was_killed_is_replaced(warm: Pool) -> None:
    victim = rank_0(warm)

    kill(victim)

    assert rank_0(warm) != victim


def test_a_rank_that_dies_as_it_gets_work_costs_no_case(warm: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    victims = [rank_0(warm)]
    take = warm._take

    def take_and_kill(count: int, start: Start) -> Any:
        taken = take(count, start)
        if victims:
            os.kill(victims.pop(), signal.SIGKILL)
        return taken

    monkeypatch.setattr(warm, "_take", take_and_kill)

    assert rank_0(warm)
    assert not victims


@pytest.mark.parametrize("who", ["zygote", "guard"])
def test_who_forks_ranks_is_replaced_and_takes_along_what_they_started(warm: Pool, who: str) -> None:
    rank, guard = rank_0(warm), zygote(warm).pid
    child = int(warm.run(work("test_child"), 2).metrics["child"])
    assert warm._zygote is not None
    old = {"zygote": warm._zygote.pid, "guard": guard}[who]
    assert alive(child)

    kill(old)

    assert rank_0(warm) != rank
    assert zygote(warm).pid != guard
    assert not alive(rank)
    assert not alive(child)


def all_ahead(pool: Pool) -> list[Any]:
    """The ranks of the group made ahead, as soon as all of them are in it."""
    assert pool._ahead is not None
    until = time.monotonic() + 10
    while {member.place().stage for member in pool._ahead.ranks} != {AHEAD} and time.monotonic() < until:
        time.sleep(0.005)
    assert [member.place().stage for member in pool._ahead.ranks] == [AHEAD] * len(pool._ahead.ranks)
    return list(pool._ahead.ranks)


def expecting(pool: Pool, world_size: int) -> list[Any]:
    """The ranks that the pool has made members of a group ahead, all of them in it."""
    pool.expect(Next(world_size, 30.0))
    return all_ahead(pool)


def test_a_group_made_ahead_serves_the_next_case_and_no_other(warm: Pool) -> None:
    first = rank_0(warm)

    for _ in range(3):
        ranks = expecting(warm, 2)
        assert [member.place().stage for member in ranks] == [AHEAD] * 2
        assert rank_0(warm) == first
        assert warm._ahead is None
    assert rank_0(warm) == first


@pytest.mark.parametrize("change", ["world size", "deadline"])
def test_ranks_with_a_group_for_another_case_are_replaced(warm: Pool, change: str) -> None:
    first = rank_0(warm)
    expecting(warm, 2)

    if change == "world size":
        assert rank_0(warm, 3) != first
    else:
        ended = warm.run(replace(work(), deadline=31.0), 2)
        assert ended.metrics["pid"] != first
        assert ended.finish.observation.seen is Seen.RIGHT


def test_a_death_in_a_group_made_ahead_costs_no_case(warm: Pool) -> None:
    victim = rank_0(warm)
    expecting(warm, 2)

    kill(victim)

    assert rank_0(warm) != victim


def test_who_waits_in_a_group_made_ahead_for_one_that_died_is_replaced(warm: Pool) -> None:
    survivor, victim = rank_0(warm), warm._idle[1]
    victim.signal(signal.SIGSTOP)
    warm.expect(Next(2, 30.0))  # rank 0 now waits for the address of rank 1
    time.sleep(0.05)
    victim.signal(signal.SIGKILL)

    begun = time.monotonic()

    assert rank_0(warm) != survivor
    assert time.monotonic() - begun < 5


def test_ranks_go_from_one_group_into_the_next_where_the_same_ones_are_wanted(warm: Pool) -> None:
    first = rank_0(warm)

    warm.run(work(), 2, then=Next(2, 30.0))
    ranks = all_ahead(warm)

    assert rank_0(warm) == first
    assert warm._idle[:2] == ranks
    warm.run(work(), 2, then=Next(3, 30.0))
    assert warm._ahead is None


def test_a_group_made_ahead_with_a_rank_that_is_not_used_again_serves_no_case(warm: Pool) -> None:
    keeper = rank_0(warm)

    ended = warm.run(work("test_thread"), 2, then=Next(2, 30.0))

    assert ended.finish.observation.seen is Seen.RIGHT
    assert rank_0(warm) != keeper, "who is in a group with it was used again"


def test_after_a_failed_case_nobody_goes_into_the_next_group(warm: Pool) -> None:
    warm.run(work("no_such_function"), 2, then=Next(2, 30.0))

    assert warm._ahead is None
    rank_0(warm)


def test_all_gloo_groups_of_a_rank_share_one_device_whose_thread_takes_no_processor_away(warm: Pool) -> None:
    metrics = warm.run(work("test_groups"), 2).metrics

    assert metrics["loops"] == 1
    assert metrics["policy of the loop"] == os.SCHED_BATCH
    assert metrics["policy of the rank"] == os.SCHED_OTHER


def test_a_sandbox_that_forbids_policies_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", forbidden)
    begun = []

    with threads_that_wait():
        begun.append("the thread")

    assert begun == ["the thread"]


def test_what_a_rank_has_told_the_others_it_does_not_ask_for() -> None:
    asked: list[tuple[Any, ...]] = []

    class Shared:
        def set(self, key: str, value: bytes) -> None:
            asked.append(("set", key))

        def wait(self, keys: list[str], timeout: timedelta) -> None:
            asked.append(("wait", keys, timeout))

        def get(self, key: str) -> bytes:
            asked.append(("get", key))
            return b"theirs"

    store = addresses()(Shared())
    store.set("0", b"")
    store.wait(["0"], timedelta(seconds=5))
    store.wait(["0", "1"], timedelta(seconds=5))

    assert [store.get("0"), store.get("1")] == [b"", b"theirs"]
    assert asked == [("set", "0"), ("wait", ["1"], timedelta(seconds=5)), ("get", "1")]


def test_ranks_are_recycled(warm: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "_MOST_CASES", 3)

    seen = [rank_0(warm) for _ in range(12)]

    assert len(set(seen)) >= 4


def test_what_takes_long_to_import_is_imported_once_for_all_ranks_from_then_on(warm: Pool) -> None:
    wanted = Start(imports=frozenset({"colorsys", "no_such_module"}))

    before = warm.run(work("test_imported"), 2).metrics
    after = [warm.run(work("test_imported"), 2, start).metrics for start in (wanted, Start(), wanted)]

    assert (before["imported"], [metrics["imported"] for metrics in after]) == (0, [1, 1, 1])
    assert before["pid"] != after[0]["pid"], "a rank that was forked before served on"
    assert len({metrics["pid"] for metrics in after}) == 1
    assert zygote(warm).poll() is None


def test_ranks_of_a_failed_case_are_replaced(warm: Pool) -> None:
    rank = rank_0(warm)

    ended = warm.run(work("no_such_function"), 2)

    assert ended.finish.observation.seen is Seen.RAISED
    assert "no_such_function" in ended.finish.observation.message
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


def test_a_zygote_that_does_not_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zygote_process, "PROGRAM", "raise SystemExit('no torch today')")
    pool = new_pool()

    with pytest.raises(PoolFailed, match="did not start: no torch today"):
        pool.run(work(), 2)
    pool.close()


def test_closing_leaves_no_process() -> None:
    pool = new_pool()
    rank, process = rank_0(pool), zygote(pool)

    pool.close()

    assert not alive(rank)
    assert process.returncode == 0
