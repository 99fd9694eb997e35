"""One round: one case on its ranks, from the work to the last rank's "done", or to the end of patience."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from conformance.ranks.channel import Message
from conformance.ranks.collective_recorder import ARRIVING, JOINING, Entry, proven_mismatch
from conformance.ranks.messages import Done, End, Join, Leave, packed, unpacked
from conformance.ranks.outcome import Evidence, Fate
from conformance.verdicts import Seen

#: How long the others may take when one rank has failed, in seconds.
GRACE = 1.0
#: How long giving back may take when all have passed.
_TEAR_DOWN = 10.0
#: When it has been quiet for so long, the ledgers are compared; twice in a row makes a proof.
_QUIET = 0.5
#: How long stacks may take to be written.
_STACKS = 0.5
_POLL = 0.01


class Listener(Protocol):
    """The pool's ears."""

    def listen(self, seconds: float) -> bool:
        """Wait for news of any rank and put it where it belongs; whether there was any."""


class Printed(Protocol):
    """What a rank prints."""

    def drain(self) -> None:
        """Take everything that is there."""

    def text(self) -> str:
        """Head and tail of what was taken."""


class RankProcess(Protocol):
    """A rank as a round needs it: on this host a Member, elsewhere one behind a slot."""

    number: int
    ready: bool
    cases: int
    last_case: str
    exit_status: int | None
    exited: bool
    lost: bool
    inbox: list[Message]

    @property
    def output(self) -> Printed: ...

    @property
    def where(self) -> str: ...

    @property
    def gone(self) -> bool: ...

    def send(self, message: Message, descriptors: Sequence[int] = ()) -> None: ...

    def place(self) -> Entry: ...

    def signal(self, number: signal.Signals) -> None: ...

    def forget(self) -> None: ...

    def stacks_size(self) -> int: ...

    def read_stacks(self) -> str: ...

    def close(self) -> None: ...


@dataclass
class _Part:
    member: RankProcess
    end: End | None = None
    done: Done | None = None
    #: The ledger when the body had ended; giving back writes over it.
    place: Entry | None = None
    told_to_leave: bool = False

    @property
    def over(self) -> bool:
        return self.member.gone or self.done is not None

    def tell_to_leave(self, nonce: str, then: Join | None = None) -> None:
        if self.end and not self.told_to_leave:
            self.told_to_leave = True
            self.member.send(packed(Leave(nonce, packed(then) if then else None)))

    @property
    def failed(self) -> bool:
        """Also by dying, or by skipping: the others may not have what they wait for."""
        return self.member.gone or (self.end is not None and not self.passed)

    @property
    def passed(self) -> bool:
        return self.end is not None and self.end.seen == Seen.RIGHT.name


class Round:
    """Follows one round. ``ranks[i]`` is rank i, and ``then[i]`` the group it makes next if all have passed."""

    def __init__(self, nonce: str, ranks: Sequence[RankProcess], ears: Listener, then: Sequence[Join] = ()) -> None:
        self._nonce, self._ears = nonce, ears
        self._then: Sequence[Join | None] = then or [None] * len(ranks)
        self._parts = [_Part(member) for member in ranks]
        self.before = tuple(dict.fromkeys(member.last_case for member in ranks if member.last_case))
        self.cause = ""

    def follow(self, deadline: float) -> list[Evidence]:
        """Until every rank is done, or killed."""
        until = time.monotonic() + deadline
        self._wait(lambda: all(part.end or part.member.gone for part in self._parts), until, watch=True)
        if self.passed:
            for part, then in zip(self._parts, self._then, strict=True):
                part.tell_to_leave(self._nonce, then)
            until = time.monotonic() + _TEAR_DOWN
            if not self._wait(lambda: all(part.over for part in self._parts), until, watch=False):
                self.cause = f"no end of giving back the group within {_TEAR_DOWN:.0f} s"
        else:
            self._wait(self._all_failures_done, time.monotonic() + GRACE, watch=False)
        self._hear_deaths()
        return self._evidence()

    @property
    def passed(self) -> bool:
        return all(part.passed for part in self._parts)

    @property
    def clean(self) -> bool:
        """Whether the ranks may be used again: all passed or skipped, all are done, and alive."""
        ends = {part.end.seen for part in self._parts if part.end}
        alive = all(part.done and not part.member.gone for part in self._parts)
        return alive and len(ends) == 1 and ends <= {Seen.RIGHT.name, Seen.ENVIRONMENT.name}

    def retired(self) -> list[RankProcess]:
        return [part.member for part in self._parts if part.done and part.done.retire]

    def leaked(self) -> list[str]:
        return sorted({name for part in self._parts if part.done for name in part.done.leaked})

    def _all_failures_done(self) -> bool:
        """Nobody waits here for a body that has not ended: it had its time."""
        return all(part.over or part.passed or part.end is None for part in self._parts)

    def _wait(self, finished: Callable[[], bool], until: float, *, watch: bool) -> bool:
        """Listen until finished (True), or until time is up. A failure leaves the others a short grace."""
        quiet_since, suspect, graced = time.monotonic(), None, not watch
        while True:
            self._sort()
            if finished():
                return True
            failed = any(part.failed for part in self._parts)
            if failed and not graced:
                until, graced = min(until, time.monotonic() + GRACE), True
            now = time.monotonic()
            if now >= until:
                return False
            # A failed rank leaves once the others have joined: their calls then end, and none fails to join.
            held_back = failed and not self._release_failed()
            if self._ears.listen(min(until - now, _POLL if held_back else _QUIET)):
                quiet_since, suspect = time.monotonic(), None
            elif watch and not failed and time.monotonic() - quiet_since >= _QUIET:
                found = self._mismatch()
                if found and found == suspect:
                    self.cause = f"the ranks cannot come together: {found}"
                    return False
                quiet_since, suspect = time.monotonic(), found

    def _release_failed(self) -> bool:
        """Let failed ranks leave the group, unless a rank is still on its way into it."""
        entries = [part.member.place() for part in self._parts if not part.end and not part.member.gone]
        if any(entry.nonce != self._nonce or entry.stage in (ARRIVING, JOINING) for entry in entries):
            return False
        for part in self._parts:
            if part.failed:
                part.tell_to_leave(self._nonce)
        return True

    def _sort(self) -> None:
        """Take every rank's messages. An answer for another round is not an answer."""
        for part in self._parts:
            for message in part.member.inbox:
                value = unpacked(message)
                if isinstance(value, End) and value.nonce == self._nonce and part.end is None:
                    part.end, part.place = value, part.member.place()
                elif isinstance(value, Done) and value.nonce == self._nonce:
                    part.done = value
            part.member.inbox.clear()

    def _mismatch(self) -> str | None:
        standing = {rank: part.member.place() for rank, part in enumerate(self._parts) if not part.end}
        left = {rank: part.place for rank, part in enumerate(self._parts) if part.end and part.place}
        if any(entry.nonce != self._nonce for entry in standing.values()):
            return None
        return proven_mismatch(standing, left)

    def _hear_deaths(self) -> None:
        """Where a channel has ended, the zygote's word on how the process ended is a moment behind."""
        until = time.monotonic() + GRACE
        while any(p.member.lost and not p.member.exited for p in self._parts) and time.monotonic() < until:
            self._ears.listen(_POLL)
        self._ears.listen(0)
        self._sort()

    # --- evidence ---------------------------------------------------------------------------------------------------

    def _evidence(self) -> list[Evidence]:
        places = [part.place or part.member.place() for part in self._parts]
        all_passed = self.passed
        # Who has passed waits for the others: its stacks say nothing, unless all have and one cannot leave.
        self._show_stacks([part for part in self._parts if not part.over and (all_passed or not part.passed)])
        return [self._one(rank, part, places[rank]) for rank, part in enumerate(self._parts)]

    def _one(self, rank: int, part: _Part, place: Entry) -> Evidence:
        part.member.output.drain()
        return Evidence(
            rank=rank,
            fate=self._fate(part),
            end=part.end,
            done=part.done,
            exit_status=part.member.exit_status,
            place=place if place.nonce == self._nonce else Entry(stage="before the case"),
            stacks=part.member.read_stacks(),
            output=part.member.output.text(),
            where=part.member.where,
        )

    def _fate(self, part: _Part) -> Fate:
        if part.member.gone:
            return Fate.DIED
        if part.done:
            return Fate.ENDED
        others_failed = any(other.failed for other in self._parts if other is not part)
        return Fate.CUT_SHORT if others_failed else Fate.STUCK

    def _show_stacks(self, parts: Sequence[_Part]) -> None:
        """Ask every rank that is missing; done when all files have been written and no longer grow."""
        for part in parts:
            part.member.signal(signal.SIGUSR1)
        until, sizes = time.monotonic() + _STACKS, [0] * len(parts)
        while parts and time.monotonic() < until:
            self._ears.listen(_POLL)
            now = [part.member.stacks_size() for part in parts]
            if all(now) and now == sizes:
                return
            sizes = now
