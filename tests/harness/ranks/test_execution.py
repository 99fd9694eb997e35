"""Tests of an execution's timeouts, with a clock that advances only while the execution listens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from conformance.judging.observation import Seen
from conformance.ranks import execution as execution_module
from conformance.ranks.channel import Done, End, encode
from conformance.ranks.collective_recorder import CollectiveRecord
from conformance.ranks.execution import Execution
from conformance.ranks.outcome import RankEnd

DEADLINE = 60.0
BODY = CollectiveRecord("n", "in the body")


class Clock:
    """Stand-in for listening: it hears nothing and advances the time by the timeout."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def listen(self, seconds: float) -> bool:
        self.now += seconds
        return False


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(execution_module, "time", made)
    return made


def rank(number: int, position: CollectiveRecord, *messages: object) -> Any:
    """Return a stand-in for a rank process at a position, with its messages, that writes stacks on request."""
    return SimpleNamespace(
        number=number,
        last_case="",
        exit_status=None,
        exited=False,
        lost=False,
        gone=False,
        where="",
        inbox=[encode(message) for message in messages],
        output=SimpleNamespace(drain=lambda: None, text=lambda: ""),
        position=lambda: position,
        send=lambda message: None,
        signal=lambda number: None,
        stacks_size=lambda: 100,
        read_stacks=lambda: "stacks",
    )


def test_a_hang_is_told_at_the_deadline(clock: Clock) -> None:
    evidence = Execution("n", [rank(0, BODY), rank(1, BODY)], clock).follow(DEADLINE)

    assert [outcome.ending for outcome in evidence] == [RankEnd.STUCK, RankEnd.STUCK]
    assert clock.now <= DEADLINE + execution_module._STACKS


def test_a_mismatch_is_told_when_it_has_been_seen_twice(clock: Clock) -> None:
    here, there = (
        CollectiveRecord("n", name, "default", 1, 4, "float32", inside=True) for name in ("all_reduce", "broadcast")
    )
    execution = Execution("n", [rank(0, here), rank(1, there)], clock)

    execution.follow(DEADLINE)

    assert execution.cause.startswith("the ranks cannot come together")
    assert clock.now <= 2 * execution_module._QUIET + execution_module._STACKS


def test_a_failure_leaves_the_others_a_grace(clock: Clock) -> None:
    failed = End("n", Seen.WRONG.name, "other values", None, "", at=0.0)

    evidence = Execution("n", [rank(0, BODY, failed, Done("n", [])), rank(1, BODY)], clock).follow(DEADLINE)

    assert [outcome.ending for outcome in evidence] == [RankEnd.ENDED, RankEnd.CUT_SHORT]
    assert execution_module.GRACE <= clock.now <= execution_module.GRACE + execution_module._STACKS
