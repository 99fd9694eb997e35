"""Outcome of a case on ranks: one observation from the outcomes of all ranks. Pure functions of values."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from conformance.judging.observation import Observation, Seen
from conformance.process.watchdog import fatal_error, rank_stacks
from conformance.ranks.channel import Done, End
from conformance.ranks.collective_recorder import CollectiveRecord
from conformance.ranks.output import tagged
from conformance.reports.verdict import Reason

#: Characters. A report cuts its messages to the same length.
_LONGEST_MESSAGE = 4000


class RankEnd(Enum):
    """How a rank's part in an execution ended."""

    ENDED = "ended"  # it reported how its body ended, and then that its state is restored
    DIED = "died"  # its process ended by itself
    STUCK = "stuck"  # it was killed: it did not end before the deadline, or provably could never end
    CUT_SHORT = "cut short"  # it was killed because another rank had failed


@dataclass(frozen=True)
class RankOutcome:
    """Outcome of one rank. ``exit_status`` is negative for a signal; ``position`` is its last recorded collective."""

    rank: int
    ending: RankEnd
    end: End | None = None
    done: Done | None = None
    exit_status: int | None = None
    position: CollectiveRecord = field(default_factory=CollectiveRecord)
    stacks: str = ""
    output: str = ""
    where: str = ""

    @property
    def never_began(self) -> bool:
        """Tell whether the rank died before it began the case, which then cannot have caused the death."""
        return self.ending is RankEnd.DIED and self.end is None and not self.position.nonce


@dataclass(frozen=True)
class CaseOutcome:
    """Outcome of a case: one observation for the verdict, and the details that people may want to read."""

    observation: Observation
    details: str
    output: str


def combine(ranks: Sequence[RankOutcome], cause: str = "") -> CaseOutcome:
    """Combine the outcomes of all ranks. ``cause`` says why the pool did not wait for ranks that are stuck."""
    observation = _observation(ranks, cause)
    clean = observation.seen is Seen.RIGHT
    details = "" if clean else "\n".join(_details(rank) for rank in ranks)
    return CaseOutcome(observation, details, "\n".join(tagged(r.rank, r.output) for r in ranks if r.output.strip()))


def _observation(ranks: Sequence[RankOutcome], cause: str) -> Observation:
    """Return the observation of a case. A death counts most, then a skip on some ranks, a failure, a hang."""
    died = [rank for rank in ranks if rank.ending is RankEnd.DIED]
    skipped = [rank for rank in ranks if _seen(rank) is Seen.ENVIRONMENT]
    # By time: the first failure is the cause, and later ones often follow from it.
    failed = sorted((r for r in ranks if _seen(r) not in (None, Seen.RIGHT, Seen.ENVIRONMENT)), key=_when)
    stuck = [rank for rank in ranks if rank.ending is not RankEnd.ENDED]
    if died:
        return _finding(Reason.CRASH, f"{_death(died[0])}{_others(ranks, died[0])}")
    if skipped and len(skipped) == len(ranks):
        return Observation(Seen.ENVIRONMENT, _message(skipped[0]))
    # Ranks decide on a skip by the same facts, so different decisions are a finding.
    if skipped:
        return _finding(Reason.DISAGREEMENT, "the ranks ended differently: " + "; ".join(map(_how, ranks)))
    if failed:
        end = failed[0].end
        assert end is not None
        reason = Reason[end.reason] if end.reason else None
        message = f"rank {failed[0].rank} of {len(ranks)}: {end.message}{_others(ranks, failed[0])}"
        return Observation(Seen[end.seen], message[:_LONGEST_MESSAGE], reason, end.missing)
    if stuck:
        why = cause or "timed out: no end before the deadline"
        return _finding(Reason.HANG, f"{why}; {'; '.join(map(_how, ranks))}")
    return _agreement(ranks)


def _agreement(ranks: Sequence[RankOutcome]) -> Observation:
    """Check that values which must agree are the same on all ranks, after all ranks have passed."""
    digests = {rank.rank: rank.end.digests for rank in ranks if rank.end}
    for name in dict.fromkeys(name for of_rank in digests.values() for name in of_rank):
        values = {rank: of_rank.get(name, "nothing") for rank, of_rank in digests.items()}
        if len(set(values.values())) > 1:
            shown = "; ".join(f"rank {rank}: {value}" for rank, value in values.items())
            return _finding(Reason.DISAGREEMENT, f"{name} is not the same on all ranks: {shown}")
    return Observation(Seen.RIGHT)


def _finding(reason: Reason, message: str) -> Observation:
    return Observation(Seen.FINDING, message[:_LONGEST_MESSAGE], reason)


def _seen(rank: RankOutcome) -> Seen | None:
    return Seen[rank.end.seen] if rank.end else None


def _when(rank: RankOutcome) -> float:
    return rank.end.at if rank.end else 0.0


def _message(rank: RankOutcome) -> str:
    return rank.end.message if rank.end else ""


def _death(rank: RankOutcome) -> str:
    """Return how and when a rank died."""
    after = "after its body had returned" if rank.end else f"before its body returned, {rank.position}"
    if rank.exit_status is None:
        return f"rank {rank.rank}{rank.where and f' on {rank.where}'} was lost {after}"
    if rank.exit_status < 0:
        name = signal.Signals(-rank.exit_status).name
        fatal = fatal_error(rank.stacks)
        return f"rank {rank.rank} was killed by {name}{f' ({fatal})' if fatal else ''} {after}"
    return f"rank {rank.rank} ended with exit status {rank.exit_status} {after}"


def _others(ranks: Sequence[RankOutcome], first: RankOutcome) -> str:
    """Return what the other ranks did beside the one that failed first."""
    rest = [rank for rank in ranks if rank is not first]
    passed = ", ".join(f"rank {rank.rank} passed" for rank in rest if _seen(rank) is Seen.RIGHT)
    problems = "; ".join(_how(rank) for rank in rest if _seen(rank) is not Seen.RIGHT)
    return (f"; {passed}" if passed else "") + (f"\nthen, maybe as a consequence: {problems}" if problems else "")


def _how(rank: RankOutcome) -> str:
    """Return how one rank ended, as a clause."""
    if rank.ending is RankEnd.DIED:
        return _death(rank)
    seen = _seen(rank)
    if seen is Seen.RIGHT:
        stuck = "" if rank.ending is RankEnd.ENDED or rank.done else ", waiting for the others"
        last = f" after {rank.position}" if rank.position.sequence else ""
        return f"rank {rank.rank} has ended its body{last}{stuck}"
    if seen is not None:
        word = "skipped" if seen is Seen.ENVIRONMENT else "failed"
        return f"rank {rank.rank} {word}: {_first_line(_message(rank))}"
    inside = "in" if rank.position.inside else "after" if rank.position.sequence else ""
    return f"rank {rank.rank} was {inside} {rank.position}".replace("  ", " ")


def _first_line(text: str) -> str:
    return text.splitlines()[0] if text else ""


def _details(rank: RankOutcome) -> str:
    """Return the traceback, stacks and end of one rank, each line with the rank's tag."""
    lines = [f"{_how(rank).removeprefix(f'rank {rank.rank} ')}"]
    if rank.end and rank.end.trace:
        lines.append(rank.end.trace)
    if rank.stacks.strip():
        lines.append(rank_stacks(rank.stacks))
    return tagged(rank.rank, "\n".join(lines))
