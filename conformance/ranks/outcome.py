"""From what every rank did to one observation. Pure: functions of values."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from conformance.process.stacks import of_the_case
from conformance.process.watchdog import fatal_error
from conformance.ranks.collective_recorder import Entry
from conformance.ranks.messages import Done, End
from conformance.ranks.output import tagged
from conformance.reports.verdict import Reason
from conformance.verdicts import Observation, Seen

_LONGEST_MESSAGE = 4000


class Fate(Enum):
    """What became of a rank in a round."""

    ENDED = "ended"  # it said how its body ended, and then that it had given everything back
    DIED = "died"  # its process ended by itself
    STUCK = "stuck"  # it was killed: no end before the deadline, or never any end, as is proven
    CUT_SHORT = "cut short"  # it was killed because another rank had failed


@dataclass(frozen=True)
class Evidence:
    """One rank's part. ``exit_status`` is negative for a signal; ``place`` is its last entry in the ledger."""

    rank: int
    fate: Fate
    end: End | None = None
    done: Done | None = None
    exit_status: int | None = None
    place: Entry = field(default_factory=Entry)
    stacks: str = ""
    output: str = ""
    where: str = ""

    @property
    def never_began(self) -> bool:
        """Whether the rank died before it had begun the case, which then has nothing to do with it."""
        return self.fate is Fate.DIED and self.end is None and not self.place.nonce


@dataclass(frozen=True)
class Finish:
    """How a round finished: one observation for the verdict, and everything people may want to read."""

    observation: Observation
    details: str
    output: str


def finish(ranks: Sequence[Evidence], cause: str = "") -> Finish:
    """One observation from all ranks; ``cause`` is why the pool did not wait for ranks that are stuck."""
    observation = _observation(ranks, cause)
    clean = observation.seen is Seen.RIGHT
    details = "" if clean else "\n".join(_details(rank) for rank in ranks)
    return Finish(observation, details, "\n".join(tagged(r.rank, r.output) for r in ranks if r.output.strip()))


def _observation(ranks: Sequence[Evidence], cause: str) -> Observation:
    died = [rank for rank in ranks if rank.fate is Fate.DIED]
    skipped = [rank for rank in ranks if _seen(rank) is Seen.ENVIRONMENT]
    failed = sorted((r for r in ranks if _seen(r) not in (None, Seen.RIGHT, Seen.ENVIRONMENT)), key=_when)
    stuck = [rank for rank in ranks if rank.fate is not Fate.ENDED]
    if died:
        return _finding(Reason.CRASH, f"{_death(died[0])}{_others(ranks, died[0])}")
    if skipped and len(skipped) == len(ranks):
        return Observation(Seen.ENVIRONMENT, _message(skipped[0]))
    if skipped:
        return _finding(Reason.DISAGREEMENT, "the ranks ended differently: " + "; ".join(map(_how, ranks)))
    if failed:
        end = failed[0].end
        assert end is not None
        reason = Reason[end.reason] if end.reason else None
        message = f"rank {failed[0].rank} of {len(ranks)}: {end.message}{_others(ranks, failed[0])}"
        return Observation(Seen[end.seen], message[:_LONGEST_MESSAGE], reason)
    if stuck:
        why = cause or "no end before the deadline"
        return _finding(Reason.HANG, f"{why}; {'; '.join(map(_how, ranks))}")
    return _agreement(ranks)


def _agreement(ranks: Sequence[Evidence]) -> Observation:
    """All passed; what they say is the same on all ranks has to be."""
    digests = {rank.rank: rank.end.digests for rank in ranks if rank.end}
    for name in dict.fromkeys(name for mine in digests.values() for name in mine):
        values = {rank: mine.get(name, "nothing") for rank, mine in digests.items()}
        if len(set(values.values())) > 1:
            shown = "; ".join(f"rank {rank}: {value}" for rank, value in values.items())
            return _finding(Reason.DISAGREEMENT, f"{name} is not the same on all ranks: {shown}")
    return Observation(Seen.RIGHT)


def _finding(reason: Reason, message: str) -> Observation:
    return Observation(Seen.FINDING, message[:_LONGEST_MESSAGE], reason)


def _seen(rank: Evidence) -> Seen | None:
    return Seen[rank.end.seen] if rank.end else None


def _when(rank: Evidence) -> float:
    return rank.end.at if rank.end else 0.0


def _message(rank: Evidence) -> str:
    return rank.end.message if rank.end else ""


def _death(rank: Evidence) -> str:
    after = "after its body had returned" if rank.end else f"before its body returned, {rank.place}"
    if rank.exit_status is None:
        return f"rank {rank.rank}{rank.where and f' on {rank.where}'} was lost {after}"
    if rank.exit_status < 0:
        name = signal.Signals(-rank.exit_status).name
        fatal = fatal_error(rank.stacks)
        return f"rank {rank.rank} was killed by {name}{f' ({fatal})' if fatal else ''} {after}"
    return f"rank {rank.rank} ended with exit status {rank.exit_status} {after}"


def _others(ranks: Sequence[Evidence], first: Evidence) -> str:
    rest = [rank for rank in ranks if rank is not first]
    well = ", ".join(f"rank {rank.rank} passed" for rank in rest if _seen(rank) is Seen.RIGHT)
    ill = "; ".join(_how(rank) for rank in rest if _seen(rank) is not Seen.RIGHT)
    return (f"; {well}" if well else "") + (f"\nthen, maybe as a consequence: {ill}" if ill else "")


def _how(rank: Evidence) -> str:
    """One rank in half a sentence."""
    if rank.fate is Fate.DIED:
        return _death(rank)
    seen = _seen(rank)
    if seen is Seen.RIGHT:
        stuck = "" if rank.fate is Fate.ENDED or rank.done else ", waiting for the others"
        last = f" after {rank.place}" if rank.place.sequence else ""
        return f"rank {rank.rank} has ended its body{last}{stuck}"
    if seen is not None:
        word = "skipped" if seen is Seen.ENVIRONMENT else "failed"
        return f"rank {rank.rank} {word}: {_first_line(_message(rank))}"
    inside = "in" if rank.place.inside else "after" if rank.place.sequence else ""
    return f"rank {rank.rank} was {inside} {rank.place}".replace("  ", " ")


def _first_line(text: str) -> str:
    return text.splitlines()[0] if text else ""


def _details(rank: Evidence) -> str:
    """Everything about one rank, each line with its tag."""
    lines = [f"{_how(rank).removeprefix(f'rank {rank.rank} ')}"]
    if rank.end and rank.end.trace:
        lines.append(rank.end.trace)
    if rank.stacks.strip():
        lines.append(of_the_case(rank.stacks))
    return tagged(rank.rank, "\n".join(lines))
