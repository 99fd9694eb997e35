"""The pool: warm ranks for every case and world size of one pytest process, replaced as soon as one is in doubt."""

from __future__ import annotations

import contextlib
import itertools
import selectors
import signal
import socket
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from conformance.case import Isolation
from conformance.ranks.channel import Closed, Message
from conformance.ranks.device_locks import Lease
from conformance.ranks.execution import RankProcess, Round
from conformance.ranks.fork_server_client import ZygoteProcess
from conformance.ranks.local_rank import Member
from conformance.ranks.messages import Hello, Join, Ready, Unfit, Work, packed, unpacked
from conformance.ranks.outcome import Evidence, Finish, finish
from conformance.verdicts import Seen

#: Importing torch takes seconds, on a busy machine many.
_ZYGOTE_PATIENCE = 180.0
#: Loading a vendor's stack may compile or probe, in every rank.
_RANK_PATIENCE = 180.0
#: How long a whole start may take; a watchdog around a case has to allow for it.
START_PATIENCE = _ZYGOTE_PATIENCE + _RANK_PATIENCE
#: A rank is recycled after so many cases, whatever it says.
_MOST_CASES = 500


class PoolFailed(Exception):
    """Ranks cannot be had; the sentence says why."""


@dataclass(frozen=True)
class Start:
    """Where the ranks of a case come from. ``environment`` is for interpreters of their own.

    ``imports`` are modules that take ranks long to import: the zygote does it once, and forks them with it.
    """

    isolation: Isolation = Isolation.REUSE
    environment: Mapping[str, str] | None = None
    imports: frozenset[str] = frozenset()

    @property
    def variables(self) -> Mapping[str, str] | None:
        """What a new interpreter is started with; None where a fork will do."""
        return (self.environment or {}) if self.isolation is Isolation.EXEC else None


@dataclass(frozen=True)
class Ended:
    """A case's finish, and what it left that ranks have given back. ``before`` are the ranks' cases before it."""

    finish: Finish
    metrics: dict[str, Any]
    count: int
    before: tuple[str, ...] = ()

    @property
    def owed_to_others(self) -> bool:
        """Whether what the ranks had run before may be why it has failed."""
        return bool(self.before) and self.finish.observation.seen in (Seen.WRONG, Seen.RAISED)


@dataclass(frozen=True)
class Seat:
    """What one rank of a round is given: its leased device and what holds it, its number on its host."""

    device: int | None = None
    descriptors: tuple[int, ...] = ()
    local: tuple[int, int] | None = None


@dataclass(frozen=True)
class Next:
    """What is known of the case that follows, whose group can be made ahead."""

    world_size: int
    deadline: float


@dataclass(frozen=True)
class _Ahead:
    """A group that ranks were told to make for a case to come."""

    nonce: str
    ranks: tuple[RankProcess, ...]
    deadline: float

    def fits(self, ranks: Sequence[RankProcess], work: Work) -> bool:
        return tuple(ranks) == self.ranks and work.deadline <= self.deadline

    def joins(self, seats: Sequence[Seat]) -> list[Join]:
        """What each of them is told."""
        world = len(self.ranks)
        return [Join(self.nonce, rank, world, self.deadline, seat.local) for rank, seat in enumerate(seats)]


class Pool:
    """Starts without waiting; the first case waits for what is not there yet."""

    def __init__(self, hello: Hello) -> None:
        self._hello = hello
        self._store: Any = None
        self._numbers = itertools.count()
        self._idle: list[Member] = []
        self._alive: dict[int, Member] = {}
        self._news = selectors.DefaultSelector()
        self._zygote: ZygoteProcess | None = None
        self._imported: frozenset[str] = frozenset()
        self._ahead: _Ahead | None = None

    def start(self) -> None:
        """Begin importing in the zygote; nothing is waited for."""
        if self._zygote is None:
            self._zygote = ZygoteProcess()
            self._news.register(self._zygote.channel, selectors.EVENT_READ, None)

    def run(
        self,
        work: Work,
        world_size: int,
        start: Start = Start(),
        devices: Lease | None = None,
        then: Next | None = None,
    ) -> Ended:
        """Run one case on ranks of its own. Raises PoolFailed where there are none to be had.

        Where the same ranks are to run the next case, they make its group as soon as they have left this one.

        A warm rank may die, killed from outside, at the very moment it is given work. Without it no other can have
        joined the group, so no body has begun, and the case runs once more.
        """
        work = replace(work, world_size=world_size)
        followed, evidence = self._round(work, start, devices, then)
        if any(one.never_began for one in evidence):
            followed, evidence = self._round(work, start, devices, then)
        ends = [one.end for one in evidence if one.end]
        leaked = followed.leaked()
        return Ended(
            finish(evidence, followed.cause),
            {**(ends[0].metrics if ends else {}), **({"leaked": ",".join(leaked)} if leaked else {})},
            sum(end.count for end in ends),
            followed.before,
        )

    def expect(self, then: Next) -> None:
        """Have warm ranks make the group of the next case while there is no work for them, if none is being made.

        Making one takes about as long as a short case does. Where there are fewer idle ranks nothing happens.
        """
        ranks = tuple(self._warm(then.world_size))
        if self._ahead is None and len(ranks) == then.world_size:
            self._ahead = _Ahead(uuid.uuid4().hex, ranks, then.deadline)
            for member, join in zip(ranks, self._ahead.joins(self._seats(ranks, None)), strict=True):
                member.send(packed(join))

    def _round(
        self, work: Work, start: Start, devices: Lease | None, then: Next | None
    ) -> tuple[Round, list[Evidence]]:
        ranks, nonce = self._ranks_for(work, start)
        work = replace(work, nonce=nonce)
        seats = self._seats(ranks, devices)
        again = self._same_again(ranks, start, devices, then)
        followed = Round(work.nonce, ranks, self, again.joins(seats) if again else ())
        for rank, (member, seat) in enumerate(zip(ranks, seats, strict=True)):
            member.forget()
            member.last_case = work.case_id
            member.send(packed(replace(work, rank=rank, device=seat.device, local=seat.local)), seat.descriptors)
        try:
            evidence = followed.follow(work.deadline)
        except BaseException:  # Ctrl-C too: whatever the ranks are in the middle of, nobody will ask them for it
            self._discard(ranks)
            raise
        if again and followed.clean and followed.passed:
            self._ahead = again
        self._give_back(ranks, followed, start)
        return followed, evidence

    def _ranks_for(self, work: Work, start: Start) -> tuple[list[Any], str]:
        """Ranks, and the round's name: that of the group which they have made ahead, where it fits."""
        ranks, nonce = self._take(work.world_size, start), uuid.uuid4().hex
        if start.isolation is not Isolation.REUSE or not self._ahead:
            return ranks, nonce
        made, self._ahead = self._ahead, None
        if made.fits(ranks, work):
            return ranks, made.nonce
        # One of them may wait in it for another that has died. There is no asking: they are replaced.
        self._keep([member for member in ranks if member not in made.ranks])
        self._discard(made.ranks)
        return self._take(work.world_size, start), nonce

    @staticmethod
    def _same_again(
        ranks: Sequence[RankProcess], start: Start, devices: Lease | None, then: Next | None
    ) -> _Ahead | None:
        """The next group, where these very ranks will be the ones to make it."""
        tired = any(member.cases + 1 >= _MOST_CASES for member in ranks)
        if then is None or devices or tired or then.world_size != len(ranks) or start.isolation is not Isolation.REUSE:
            return None
        return _Ahead(uuid.uuid4().hex, tuple(ranks), then.deadline)

    # --- ranks ------------------------------------------------------------------------------------------------------

    @property
    def most_ranks(self) -> int | None:
        """How many there can be; None where more are forked as they are wanted."""
        return None

    def _seats(self, ranks: Sequence[Any], devices: Lease | None) -> list[Seat]:
        return [self._seat(rank, ranks, devices) for rank in range(len(ranks))]

    def _seat(self, rank: int, ranks: Sequence[Any], devices: Lease | None) -> Seat:
        """Of one rank of a round."""
        del ranks
        return Seat(*devices.of_rank(rank)) if devices else Seat()

    def _warm(self, count: int) -> list[Any]:
        """The warm ranks that a case of that many would get next."""
        return self._idle[:count]

    def _keep(self, ranks: Sequence[Any]) -> None:
        """For the next case: it gets those first that ran last."""
        self._idle[:0] = ranks

    def _take(self, count: int, start: Start) -> list[Any]:
        """Ranks that are ready; those that died while nobody looked are replaced."""
        for _ in range(3):
            while self.listen(0):
                pass
            if self._zygote is None or self._zygote.dead:
                self._restart()
            ranks: list[Member] = []
            try:
                self._import(start.imports)
                if start.isolation is Isolation.REUSE:
                    ranks, self._idle = self._idle[:count], self._idle[count:]
                ranks += self._fork(count - len(ranks), start)
                self._wait_until_ready(ranks)
            except Closed:
                continue  # the zygote has died, and its ranks with it
            if not any(member.gone for member in ranks):
                return ranks
            self._discard(ranks)
        raise PoolFailed(f"{count} ranks could not be had: they, or the zygote that forks them, died three times")

    def _import(self, names: frozenset[str]) -> None:
        """Have the zygote import what it has not. Idle ranks were forked without it, and are no longer wanted."""
        assert self._zygote is not None
        if names <= self._imported:
            return
        self._wait_for_zygote(self._zygote)
        self._zygote.channel.send({"kind": "import", "names": sorted(names - self._imported)})
        self._imported |= names
        self._discard(list(self._idle))

    def _fork(self, missing: int, start: Start) -> list[Member]:
        assert self._zygote is not None
        if missing <= 0:
            return []
        self._wait_for_zygote(self._zygote)
        return [self._new(self._zygote, start) for _ in range(missing)]

    def _new(self, zygote: ZygoteProcess, start: Start) -> Member:
        member = Member.fork(next(self._numbers), zygote.channel, self._greeting(), start.variables)
        self._alive[member.number] = member
        self._news.register(member.channel, selectors.EVENT_READ, member)
        self._news.register(member.output, selectors.EVENT_READ, member.output)
        return member

    def _greeting(self) -> Hello:
        import sys

        if self._store is None:
            self._store = _store()
        return replace(self._hello, module_path=list(sys.path), store_port=self._store.port)

    def _wait_until_ready(self, ranks: Sequence[RankProcess]) -> None:
        until = time.monotonic() + _RANK_PATIENCE
        while True:
            for member in ranks:
                self._greet(member, ranks)
            if all(member.ready or member.gone for member in ranks):
                return
            if time.monotonic() > until:
                self._discard(ranks)
                raise PoolFailed(f"a rank did not load the accelerator within {_RANK_PATIENCE:.0f} s")
            self.listen(_RANK_PATIENCE)

    def _greet(self, member: RankProcess, ranks: Sequence[RankProcess]) -> None:
        for message in member.inbox:
            value = unpacked(message)
            if isinstance(value, Unfit):
                self._discard(ranks)
                raise PoolFailed(f"a rank cannot load the accelerator: {value.sentence}")
            member.ready = isinstance(value, Ready)
        member.inbox.clear()

    def _give_back(self, ranks: Sequence[RankProcess], followed: Round, start: Start) -> None:
        for member in ranks:
            member.cases += 1
        if start.isolation is not Isolation.REUSE or not followed.clean:
            self._discard(ranks)
            return
        tired = [member for member in ranks if member.cases >= _MOST_CASES or member in followed.retired()]
        self._discard(tired)
        self._keep([member for member in ranks if member not in tired])

    def _discard(self, members: Sequence[RankProcess]) -> None:
        """Kill without waiting: the zygote reaps them, and what they have started."""
        for member in members:
            if not member.exited:
                member.signal(signal.SIGKILL)
            self._forget(member)

    def _forget(self, one: RankProcess) -> None:
        member = self._alive.pop(one.number, None)
        if member is None:
            return
        if member in self._idle:
            self._idle.remove(member)
        for part in (member.channel, member.output):
            with contextlib.suppress(KeyError):
                self._news.unregister(part)
        member.close()

    # --- news -------------------------------------------------------------------------------------------------------

    def listen(self, seconds: float) -> bool:
        """Wait for news of any rank, and put it where it belongs; whether there was any but output."""
        heard = False
        for key, _ in self._news.select(max(0.0, seconds)):
            if self._news.get_map().get(key.fd) is not key:
                continue  # closed by news that came before it in the same batch
            if key.data is None:
                heard |= self._hear_zygote()
            elif isinstance(key.data, Member):
                self._hear_rank(key.data)
                heard = True
            elif not key.data.read():
                self._news.unregister(key.fileobj)
        return heard

    def _hear_rank(self, member: Member) -> None:
        try:
            member.inbox += member.channel.receive()
        except Closed:
            member.lost = True
            self._news.unregister(member.channel)
            if member in self._idle:
                self._forget(member)

    def _hear_zygote(self) -> bool:
        assert self._zygote is not None
        try:
            messages = self._zygote.channel.receive()
        except Closed:
            self._zygote.dead = True
            self._news.unregister(self._zygote.channel)
            for member in list(self._alive.values()):
                member.lost = True  # the kernel kills them with the zygote
            return True
        heard = False
        for message in messages:
            heard |= self._note(message)
        return heard

    def _note(self, message: Message) -> bool:
        """Whether it is about a rank that somebody cares for."""
        assert self._zygote is not None
        if message["kind"] == "up":
            self._zygote.up, self._zygote.pid = True, int(message["pid"])
            return True
        member = self._alive.get(int(message["number"]))
        if member is None:
            return False
        member.exited, member.exit_status = True, int(message["status"])
        if member in self._idle:
            self._forget(member)
        return True

    # --- zygote -----------------------------------------------------------------------------------------------------

    def _wait_for_zygote(self, zygote: ZygoteProcess) -> None:
        until = time.monotonic() + _ZYGOTE_PATIENCE
        while not zygote.up:
            if zygote.dead:
                raise PoolFailed(f"the zygote that forks ranks did not start: {zygote.last_words()}")
            if time.monotonic() > until:
                raise PoolFailed(f"the zygote that forks ranks did not start within {_ZYGOTE_PATIENCE:.0f} s")
            self.listen(1.0)

    def _restart(self) -> None:
        for member in list(self._alive.values()):
            self._forget(member)
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None
        self._imported = frozenset()
        self.start()

    def close(self) -> None:
        """End every rank and the zygote; nothing is left when it returns."""
        for member in list(self._alive.values()):
            self._forget(member)
        if self._zygote is not None:
            if not self._zygote.dead:
                self._news.unregister(self._zygote.channel)
            self._zygote.close()
            self._zygote = None
        self._news.close()
        self._store = None


def _store() -> Any:
    """The one store of this pool, on a port of the loopback that the kernel has chosen and holds."""
    from torch._C._distributed_c10d import TCPStore

    try:
        listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    except OSError as error:
        raise PoolFailed(f"the ranks' store cannot listen on the loopback: {error.strerror}") from None
    port = listener.getsockname()[1]
    return TCPStore("127.0.0.1", port, None, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
