"""A round's patience, by a clock that only listening moves: nobody waits longer than it says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from conformance.ranks import execution as rounds
from conformance.ranks.collective_recorder import Entry
from conformance.ranks.execution import Round
from conformance.ranks.messages import Done, End, packed
from conformance.ranks.outcome import Fate
from conformance.verdicts import Seen

DEADLINE = 60.0
BODY = Entry("n", "in the body")


class Clock:
    """Ears that hear nothing, for exactly as long as they are asked to; time passes in no other way."""

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
    monkeypatch.setattr(rounds, "time", made)
    return made


def rank(number: int, place: Entry, *messages: object) -> Any:
    """A process that stands at that place, has said what it said, and writes its stacks when it is asked."""
    return SimpleNamespace(
        number=number,
        last_case="",
        exit_status=None,
        exited=False,
        lost=False,
        gone=False,
        where="",
        inbox=[packed(message) for message in messages],
        output=SimpleNamespace(drain=lambda: None, text=lambda: ""),
        place=lambda: place,
        send=lambda message: None,
        signal=lambda number: None,
        stacks_size=lambda: 100,
        read_stacks=lambda: "stacks",
    )


def test_a_hang_is_told_at_the_deadline(clock: Clock) -> None:
    evidence = Round("n", [rank(0, BODY), rank(1, BODY)], clock).follow(DEADLINE)

    assert [one.fate for one in evidence] == [Fate.STUCK, Fate.STUCK]
    assert clock.now <= DEADLINE + rounds._STACKS


def test_a_mismatch_is_told_when_it_has_been_seen_twice(clock: Clock) -> None:
    here, there = (Entry("n", name, "default", 1, 4, "float32", inside=True) for name in ("all_reduce", "broadcast"))
    followed = Round("n", [rank(0, here), rank(1, there)], clock)

    followed.follow(DEADLINE)

    assert followed.cause.startswith("the ranks cannot come together")
    assert clock.now <= 2 * rounds._QUIET + rounds._STACKS


def test_a_failure_leaves_the_others_a_grace(clock: Clock) -> None:
    failed = End("n", Seen.WRONG.name, "other values", None, "", at=0.0)

    evidence = Round("n", [rank(0, BODY, failed, Done("n", [])), rank(1, BODY)], clock).follow(DEADLINE)

    assert [one.fate for one in evidence] == [Fate.ENDED, Fate.CUT_SHORT]
    assert rounds.GRACE <= clock.now <= rounds.GRACE + rounds._STACKS
