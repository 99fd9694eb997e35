"""Tests of the observation that is made of the outcomes of ranks, without processes."""

from __future__ import annotations

import pytest

from conformance.judging.observation import Seen
from conformance.ranks.channel import Done, End
from conformance.ranks.collective_recorder import CollectiveRecord
from conformance.ranks.outcome import RankEnd, RankOutcome, combine
from conformance.reports.verdict import Reason


def end(seen: Seen = Seen.RIGHT, message: str = "", at: float = 0.0, **digests: str) -> End:
    return End("n", seen.name, message, None, "", at, digests=digests)


def ended(rank: int, seen: Seen = Seen.RIGHT, message: str = "", at: float = 0.0, **digests: str) -> RankOutcome:
    return RankOutcome(rank, RankEnd.ENDED, end(seen, message, at, **digests), Done("n", []))


def died(rank: int, status: int, seen: Seen | None = None) -> RankOutcome:
    return RankOutcome(
        rank,
        RankEnd.DIED,
        end(seen) if seen else None,
        exit_status=status,
        position=CollectiveRecord("n", "in the body"),
    )


def stuck(rank: int, end_of_rank: RankEnd = RankEnd.STUCK, ending: End | None = None) -> RankOutcome:
    return RankOutcome(
        rank, end_of_rank, ending, position=CollectiveRecord("n", "all_reduce", "default", 3, 4, "float32", inside=True)
    )


CASES = [
    ([ended(0), ended(1)], Seen.RIGHT, None, ""),
    ([ended(0), ended(1, Seen.WRONG, "off")], Seen.WRONG, None, "rank 1 of 2: off; rank 0 passed"),
    ([ended(0, Seen.RAISED, "gone", 2), ended(1, Seen.WRONG, "off", 1)], Seen.WRONG, None, "rank 1 of 2: off"),
    ([ended(0, Seen.NOT_IMPLEMENTED, "no"), ended(1, Seen.NOT_IMPLEMENTED, "no")], Seen.NOT_IMPLEMENTED, None, "no"),
    ([ended(0, Seen.ENVIRONMENT, "none"), ended(1, Seen.ENVIRONMENT, "none")], Seen.ENVIRONMENT, None, "none"),
    ([ended(0, Seen.ENVIRONMENT, "none"), ended(1)], Seen.FINDING, Reason.DISAGREEMENT, "rank 0 skipped: none"),
    ([ended(0, Seen.ENVIRONMENT, "none"), stuck(1)], Seen.FINDING, Reason.DISAGREEMENT, "rank 1 was in all_reduce #3"),
    ([ended(0), died(1, 0)], Seen.FINDING, Reason.CRASH, "rank 1 ended with exit status 0 before its body returned"),
    ([ended(0), died(1, 0, Seen.RIGHT)], Seen.FINDING, Reason.CRASH, "exit status 0 after its body had returned"),
    ([died(0, -11), died(1, -6)], Seen.FINDING, Reason.CRASH, "rank 0 was killed by SIGSEGV"),
    ([ended(0, Seen.ENVIRONMENT, "none"), died(1, -9)], Seen.FINDING, Reason.CRASH, "SIGKILL"),
    ([stuck(0), stuck(1)], Seen.FINDING, Reason.HANG, "rank 0 was in all_reduce #3 float32[4]"),
    ([stuck(0), stuck(1, RankEnd.STUCK, end())], Seen.FINDING, Reason.HANG, "rank 1 has ended its body"),
    ([stuck(0, RankEnd.STUCK, end()), stuck(1, RankEnd.STUCK, end())], Seen.FINDING, Reason.HANG, "has ended its body"),
    ([ended(0, same="a"), ended(1, same="b")], Seen.FINDING, Reason.DISAGREEMENT, "rank 0: a; rank 1: b"),
    ([ended(0, same="a"), ended(1)], Seen.FINDING, Reason.DISAGREEMENT, "rank 1: nothing"),
    ([ended(0, same="a"), ended(1, same="a")], Seen.RIGHT, None, ""),
]


@pytest.mark.parametrize(("ranks", "seen", "reason", "text"), CASES)
def test_one_observation(ranks: list[RankOutcome], seen: Seen, reason: Reason | None, text: str) -> None:
    observation = combine(ranks).observation

    assert (observation.seen, observation.reason) == (seen, reason)
    assert text in observation.message


@pytest.mark.parametrize("ranks", [ranks for ranks, *_ in CASES])
def test_it_passes_only_if_every_rank_said_so_and_is_done(ranks: list[RankOutcome]) -> None:
    well = all(r.ending is RankEnd.ENDED and r.end and r.end.seen == "RIGHT" for r in ranks)
    agree = len({tuple(r.end.digests.items()) for r in ranks if r.end}) == 1

    assert (combine(ranks).observation.seen is Seen.RIGHT) == (well and agree)


def test_why_nobody_waited_longer_is_told_first() -> None:
    message = combine([stuck(0), stuck(1)], "the ranks cannot come together").observation.message

    assert message.startswith("the ranks cannot come together; rank 0")


def test_output_is_tagged_line_by_line() -> None:
    ranks = [RankOutcome(0, RankEnd.ENDED, end(), Done("n", []), output="a\nb\n"), ended(1)]

    assert combine(ranks).output == "[rank 0] a\n[rank 0] b"
