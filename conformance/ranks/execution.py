"""Execution of one case on its ranks, until every rank is done or has timed out."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from conformance.judging.observation import Seen
from conformance.process.machine import slowdown
from conformance.ranks.channel import Done, End, Leave, Message, decode, encode
from conformance.ranks.collective_recorder import ARRIVING, JOINING, CollectiveRecord, prove_mismatch
from conformance.ranks.outcome import RankEnd, RankOutcome

#: Seconds that the other ranks have when one rank has failed.
GRACE = 1.0
#: Seconds that the tear-down may take when all ranks have passed.
_TEAR_DOWN = 10.0
#: Seconds without news after which the recorded collectives are compared. Two equal results in a row are a proof.
_QUIET = 0.5
#: Seconds that a rank may take to write its stacks.
_STACKS = 0.5
#: Seconds between two looks at shared memory or files, which wake no selector.
_POLL = 0.01


class Listener(Protocol):
    """Receiver of messages from ranks: the pool."""

    def listen(self, seconds: float) -> bool:
        """Wait for messages of any rank and sort them into inboxes. Return whether there were any."""


class RankOutput(Protocol):
    """Captured output of a rank."""

    def drain(self) -> None:
        """Read everything that has arrived."""

    def text(self) -> str:
        """Return the first and the last part of the output."""


class RankProcess(Protocol):
    """A rank as an execution needs it: a LocalRank on this host, a RemoteRank on another."""

    number: int
    ready: bool
    cases: int
    last_case: str
    exit_status: int | None
    exited: bool
    lost: bool
    inbox: list[Message]

    @property
    def output(self) -> RankOutput: ...

    @property
    def where(self) -> str: ...

    @property
    def gone(self) -> bool: ...

    def send(self, message: Message, descriptors: Sequence[int] = ()) -> None: ...

    def position(self) -> CollectiveRecord: ...

    def signal(self, number: signal.Signals) -> None: ...

    def forget(self) -> None: ...

    def stacks_size(self) -> int: ...

    def read_stacks(self) -> str: ...

    def close(self) -> None: ...


@dataclass
class _Participant:
    """State of one rank in an execution."""

    process: RankProcess
    end: End | None = None
    done: Done | None = None
    #: Record at the end of the body; the tear-down writes over it.
    position: CollectiveRecord | None = None
    told_to_leave: bool = False

    @property
    def finished(self) -> bool:
        return self.process.gone or self.done is not None

    def tell_to_leave(self, nonce: str) -> None:
        if self.end and not self.told_to_leave:
            self.told_to_leave = True
            self.process.send(encode(Leave(nonce)))

    @property
    def failed(self) -> bool:
        # A rank that died or skipped counts too: other ranks may wait for its part of a collective.
        return self.process.gone or (self.end is not None and not self.passed)

    @property
    def passed(self) -> bool:
        return self.end is not None and self.end.seen == Seen.RIGHT.name


class Execution:
    """One case on its ranks. ``ranks[i]`` runs the body as rank i."""

    def __init__(self, nonce: str, ranks: Sequence[RankProcess], listener: Listener) -> None:
        self._nonce, self._listener = nonce, listener
        self._participants = [_Participant(process) for process in ranks]
        #: Cases that these processes have run before.
        self.before = tuple(dict.fromkeys(process.last_case for process in ranks if process.last_case))
        #: Why the pool did not wait for ranks that are stuck, or an empty string.
        self.cause = ""

    def follow(self, deadline: float) -> list[RankOutcome]:
        """Wait until every rank is done or ``deadline`` seconds have passed; return the outcome of each rank."""
        until = time.monotonic() + deadline
        self._wait(lambda: all(rank.end or rank.process.gone for rank in self._participants), until, watch=True)
        if self.passed:
            for rank in self._participants:
                rank.tell_to_leave(self._nonce)
            # A new time limit: a slow tear-down must not be taken for a body that missed its deadline.
            limit = _TEAR_DOWN * slowdown()
            until = time.monotonic() + limit
            if not self._wait(lambda: all(rank.finished for rank in self._participants), until, watch=False):
                self.cause = f"leaving the group did not end within {limit:.0f} s"
        else:
            # Failed ranks report what they leaked, and are then discarded anyway, so this wait is short.
            self._wait(self._failed_ranks_finished, time.monotonic() + GRACE, watch=False)
        self._wait_for_exit_statuses()
        return self._outcomes()

    @property
    def passed(self) -> bool:
        """Tell whether the body has passed on every rank."""
        return all(rank.passed for rank in self._participants)

    @property
    def clean(self) -> bool:
        """Tell whether the ranks may be used again: all passed or all skipped, all are done and alive."""
        ends = {rank.end.seen for rank in self._participants if rank.end}
        alive = all(rank.done and not rank.process.gone for rank in self._participants)
        return alive and len(ends) == 1 and ends <= {Seen.RIGHT.name, Seen.ENVIRONMENT.name}

    def retired(self) -> list[RankProcess]:
        """Return the ranks that must not be used again, as they reported."""
        return [rank.process for rank in self._participants if rank.done and rank.done.retire]

    def leaked(self) -> list[str]:
        """Return the names of process-wide state that the body has changed on any rank."""
        return sorted({name for rank in self._participants if rank.done for name in rank.done.leaked})

    def _failed_ranks_finished(self) -> bool:
        # A body that has not ended is not waited for: it has used up its time.
        return all(rank.finished or rank.passed or rank.end is None for rank in self._participants)

    def _wait(self, finished: Callable[[], bool], until: float, *, watch: bool) -> bool:
        """Listen until ``finished()`` (return True) or until the time is up (return False).

        With ``watch`` a failure shortens the time to GRACE, and a proven mismatch of collectives ends the wait.
        """
        quiet_since, suspect, shortened = time.monotonic(), None, not watch
        while True:
            self._take_messages()
            if finished():
                return True
            failed = any(rank.failed for rank in self._participants)
            if failed and not shortened:
                until, shortened = min(until, time.monotonic() + GRACE), True
            now = time.monotonic()
            if now >= until:
                return False
            # A failed rank leaves only after the others have joined: then their calls end, and joining does not fail.
            held_back = failed and not self._release_failed()
            if self._listener.listen(min(until - now, _POLL if held_back else _QUIET)):
                quiet_since, suspect = time.monotonic(), None
            elif watch and not failed and time.monotonic() - quiet_since >= _QUIET:
                found = self._mismatch()
                # Twice the same: a rank may have been between two records at the first look.
                if found and found == suspect:
                    self.cause = f"the ranks cannot come together: {found}"
                    return False
                quiet_since, suspect = time.monotonic(), found

    def _release_failed(self) -> bool:
        """Let failed ranks leave the group. Return False, and do nothing, while a rank is still joining it."""
        records = [rank.process.position() for rank in self._participants if not rank.end and not rank.process.gone]
        if any(record.nonce != self._nonce or record.stage in (ARRIVING, JOINING) for record in records):
            return False
        for rank in self._participants:
            if rank.failed:
                rank.tell_to_leave(self._nonce)
        return True

    def _take_messages(self) -> None:
        """Take the messages of every rank; ignore messages of other executions."""
        for rank in self._participants:
            for raw in rank.process.inbox:
                message = decode(raw)
                if isinstance(message, End) and message.nonce == self._nonce and rank.end is None:
                    rank.end, rank.position = message, rank.process.position()
                elif isinstance(message, Done) and message.nonce == self._nonce:
                    rank.done = message
            rank.process.inbox.clear()

    def _mismatch(self) -> str | None:
        """Return why the ranks can never meet in a collective, or ``None`` where nothing is proved."""
        ranks = list(enumerate(self._participants))
        running = {number: rank.process.position() for number, rank in ranks if not rank.end}
        ended = {number: rank.position for number, rank in ranks if rank.end and rank.position}
        # A rank that still shows an earlier case has not begun this one, so nothing can be compared yet.
        if any(record.nonce != self._nonce for record in running.values()):
            return None
        return prove_mismatch(running, ended)

    def _wait_for_exit_statuses(self) -> None:
        """Wait a moment for the exit status of dead ranks: the fork server reports it after the channel has ended."""
        until = time.monotonic() + GRACE
        while self._exit_status_missing() and time.monotonic() < until:
            self._listener.listen(_POLL)
        self._listener.listen(0)
        self._take_messages()

    def _exit_status_missing(self) -> bool:
        return any(rank.process.lost and not rank.process.exited for rank in self._participants)

    # --- outcomes ---------------------------------------------------------------------------------------------------

    def _outcomes(self) -> list[RankOutcome]:
        """Return the outcome of each rank, with stacks of the unfinished ranks where those help."""
        # Before the request for stacks, which lets time pass in which a rank may move on.
        positions = [rank.position or rank.process.position() for rank in self._participants]
        all_passed = self.passed
        # A rank that has passed waits for the others, so its stacks say nothing, unless all passed and one is stuck.
        self._request_stacks(
            [rank for rank in self._participants if not rank.finished and (all_passed or not rank.passed)]
        )
        return [self._outcome(number, rank, positions[number]) for number, rank in enumerate(self._participants)]

    def _outcome(self, number: int, rank: _Participant, position: CollectiveRecord) -> RankOutcome:
        """Return the outcome of one rank, with the end of its output and the collective that it was in."""
        rank.process.output.drain()
        return RankOutcome(
            rank=number,
            ending=self._ending(rank),
            end=rank.end,
            done=rank.done,
            exit_status=rank.process.exit_status,
            position=position if position.nonce == self._nonce else CollectiveRecord(stage="before the case"),
            stacks=rank.process.read_stacks(),
            output=rank.process.output.text(),
            where=rank.process.where,
        )

    def _ending(self, rank: _Participant) -> RankEnd:
        """Return how the rank's part ended: death comes first, and a rank is only stuck where no other rank failed."""
        if rank.process.gone:
            return RankEnd.DIED
        if rank.done:
            return RankEnd.ENDED
        others_failed = any(peer.failed for peer in self._participants if peer is not rank)
        return RankEnd.CUT_SHORT if others_failed else RankEnd.STUCK

    def _request_stacks(self, ranks: Sequence[_Participant]) -> None:
        """Ask ranks for their stacks, and wait until the files have stopped growing."""
        for rank in ranks:
            rank.process.signal(signal.SIGUSR1)
        until, sizes = time.monotonic() + _STACKS, [0] * len(ranks)
        while ranks and time.monotonic() < until:
            self._listener.listen(_POLL)
            now = [rank.process.stacks_size() for rank in ranks]
            if all(now) and now == sizes:
                return
            sizes = now
