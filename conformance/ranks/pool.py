"""Pool of warm ranks for all cases and world sizes of one pytest process. Ranks in a doubtful state are replaced."""

from __future__ import annotations

import contextlib
import itertools
import selectors
import signal
import socket
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from conformance.judging.observation import Seen
from conformance.plan.case import Isolation
from conformance.ranks.channel import Closed, Hello, LoadFailed, Message, Ready, Work, decode, encode
from conformance.ranks.device_locks import LockedDevices
from conformance.ranks.execution import Execution, RankProcess
from conformance.ranks.fork_server_client import ForkServerClient
from conformance.ranks.local_rank import LocalRank
from conformance.ranks.outcome import CaseOutcome, RankEnd, RankOutcome, combine
from conformance.reports.model import PROCESSES

#: Seconds that the fork server may take to start. It imports torch, which takes long on a busy machine.
_FORK_SERVER_TIMEOUT = 180.0
#: Seconds that a rank may take to start. Loading a vendor's stack may compile or probe in every rank.
_RANK_TIMEOUT = 180.0
#: Seconds for a connection of this process to itself.
_LOOPBACK_SECONDS = 10.0
#: Seconds that a whole start may take; a watchdog around a case has to allow for it.
START_TIMEOUT = _FORK_SERVER_TIMEOUT + _RANK_TIMEOUT
#: Number of cases after which a rank is replaced, even if it is healthy.
_MOST_CASES = 500
#: Number of idle ranks that are kept where the last case had fewer. Each may hold memory of a device. Two processes
#: that share four devices use nine pairs of a rank and a device each, and a start takes longer than most cases.
_MOST_IDLE = 10


class PoolFailed(Exception):
    """Ranks cannot be provided; the sentence says why."""


@dataclass(frozen=True)
class RankStart:
    """How the ranks of a case start.

    ``environment`` is for ranks that are new interpreters. ``imports`` are modules that take long to import: the fork
    server imports them once, and its forks have them.
    """

    isolation: Isolation = Isolation.REUSE
    environment: Mapping[str, str] | None = None
    imports: frozenset[str] = frozenset()

    @property
    def variables(self) -> Mapping[str, str] | None:
        """Environment of a new interpreter, or None where a fork is enough."""
        return (self.environment or {}) if self.isolation is Isolation.EXEC else None


@dataclass(frozen=True)
class ExecutionResult:
    """Outcome of a case, with the state that ranks had to restore. ``before`` names the ranks' earlier cases."""

    outcome: CaseOutcome
    metrics: dict[str, Any]
    count: int
    before: tuple[str, ...] = ()
    answers: Mapping[str, str] = field(default_factory=dict)

    @property
    def suspects_earlier_case(self) -> bool:
        """Tell whether state of an earlier case on the same ranks may be the reason of the failure."""
        return bool(self.before) and self.outcome.observation.seen in (Seen.WRONG, Seen.RAISED)


@dataclass(frozen=True)
class RankSlot:
    """What one rank of an execution gets: its device, the descriptors that hold it, its local rank and world size."""

    device: int | None = None
    descriptors: tuple[int, ...] = ()
    local: tuple[int, int] | None = None


class Pool:
    """Ranks of this host. Starting does not wait; the first case waits for what is not ready yet."""

    def __init__(self, hello: Hello) -> None:
        self._hello = hello
        self._store: Any = None
        self._numbers = itertools.count()
        self._idle: list[LocalRank] = []
        self._alive: dict[int, LocalRank] = {}
        self._selector = selectors.DefaultSelector()
        self._fork_server: ForkServerClient | None = None
        self._imported: frozenset[str] = frozenset()

    def start(self) -> None:
        """Start the fork server without waiting for it."""
        if self._fork_server is None:
            self._fork_server = ForkServerClient()
            self._selector.register(self._fork_server.channel, selectors.EVENT_READ, None)

    def run(
        self, work: Work, world_size: int, start: RankStart = RankStart(), devices: LockedDevices | None = None
    ) -> ExecutionResult:
        """Run one case on ``world_size`` ranks. Raise PoolFailed where ranks cannot be provided."""
        work = replace(work, world_size=world_size)
        execution, outcomes = self._execute(work, start, devices)
        # An idle rank may be killed from outside at the moment when it gets work. Then no other rank has joined the
        # group and no body has begun, so the case runs once more. It does too where the fork server died, which ends
        # all ranks: if the case is the reason, it dies again.
        lost = [outcome for outcome in outcomes if outcome.ending is RankEnd.DIED]
        if any(outcome.never_began for outcome in lost) or (lost and self._fork_server_died):
            execution, outcomes = self._execute(work, start, devices)
        ends = [outcome.end for outcome in outcomes if outcome.end]
        leaked = execution.leaked()
        return ExecutionResult(
            combine(outcomes, execution.cause),
            # The number of processes that reported an end is the evidence that the body ran on so many ranks.
            {
                **(ends[0].metrics if ends else {}),
                PROCESSES: len(ends),
                **({"leaked": ",".join(leaked)} if leaked else {}),
            },
            sum(end.count for end in ends),
            execution.before,
            {name: value for end in ends for name, value in end.answers.items()},
        )

    def _execute(
        self, work: Work, start: RankStart, devices: LockedDevices | None
    ) -> tuple[Execution, list[RankOutcome]]:
        """Run the case once on warm ranks and return the execution with one outcome for each rank."""
        ranks = self._take(work.world_size, start, devices)
        # A new nonce for each execution, so that late messages of an earlier one cannot be mistaken for this one's.
        work = replace(work, nonce=uuid.uuid4().hex)
        execution = Execution(work.nonce, ranks, self)
        for number, rank in enumerate(ranks):
            slot = self._slot(number, ranks, devices)
            rank.forget()
            rank.last_case = work.case_id
            rank.send(encode(replace(work, rank=number, device=slot.device, local=slot.local)), slot.descriptors)
        try:
            outcomes = execution.follow(work.deadline)
        except BaseException:  # Ctrl-C too: the ranks are in the middle of a case that nobody waits for any more
            self._discard(ranks)
            raise
        self._give_back(ranks, execution, start)
        return execution, outcomes

    # --- ranks ------------------------------------------------------------------------------------------------------

    @property
    def most_ranks(self) -> int | None:
        """Largest possible world size, or None where the pool forks as many ranks as a case needs."""
        return None

    @property
    def _fork_server_died(self) -> bool:
        """Tell whether the fork server of the last case's ranks is dead."""
        return self._fork_server is not None and self._fork_server.dead

    def _slot(self, number: int, ranks: Sequence[Any], devices: LockedDevices | None) -> RankSlot:
        """Return the slot of rank ``number`` of an execution."""
        del ranks
        return RankSlot(*devices.of_rank(number)) if devices else RankSlot()

    def _keep(self, ranks: Sequence[Any]) -> None:
        """Keep ranks for the next case, which gets the ranks first that ran last; discard those idle for longest."""
        self._idle[:0] = ranks
        self._discard(self._idle[max(_MOST_IDLE, len(ranks)) :])

    def _take(self, count: int, start: RankStart, devices: LockedDevices | None) -> list[Any]:
        """Return ranks that are ready, in place of those that died while they were idle."""
        places = [(number, devices.devices[number] if devices else None) for number in range(count)]
        for _ in range(3):
            while self.listen(0):
                pass
            if self._fork_server is None or self._fork_server.dead:
                self._restart()
            ranks: list[LocalRank] = []
            try:
                self._import(start.imports)
                reuses = start.isolation is Isolation.REUSE
                found = [self._idle_rank(place) if reuses else None for place in places]
                new = iter(self._fork(found.count(None), start))
                ranks = [rank or next(new) for rank in found]
                for place, rank in zip(places, ranks, strict=True):
                    rank.place = place
                self._wait_until_ready(ranks)
            except Closed:
                continue  # the fork server has died, and its ranks with it
            if not any(rank.gone for rank in ranks):
                return ranks
            self._discard(ranks)
        raise PoolFailed(
            f"{count} ranks could not be started: they, or the fork server, died three times in a row. "
            "Look at the last lines of their output, and at the system's log for killed processes."
        )

    def _idle_rank(self, place: tuple[int, int | None]) -> LocalRank | None:
        """Return the idle process of this rank and device, which is then not idle; None if there is none."""
        rank = next((rank for rank in self._idle if rank.place == place), None)
        if rank is not None:
            self._idle.remove(rank)
        return rank

    def _import(self, names: frozenset[str]) -> None:
        """Let the fork server import modules that it has not imported, and discard the ranks forked without them."""
        assert self._fork_server is not None
        if names <= self._imported:
            return
        self._wait_for_fork_server(self._fork_server)
        self._fork_server.channel.send({"kind": "import", "names": sorted(names - self._imported)})
        self._imported |= names
        self._discard(list(self._idle))

    def _fork(self, missing: int, start: RankStart) -> list[LocalRank]:
        """Fork ``missing`` ranks, which are not ready yet. Waits for the fork server where necessary."""
        assert self._fork_server is not None
        if missing <= 0:
            return []
        self._wait_for_fork_server(self._fork_server)
        return [self._new(self._fork_server, start) for _ in range(missing)]

    def _new(self, fork_server: ForkServerClient, start: RankStart) -> LocalRank:
        """Fork one rank and listen to its channel and its output."""
        rank = LocalRank.fork(next(self._numbers), fork_server.channel, self._greeting(), start.variables)
        self._alive[rank.number] = rank
        self._selector.register(rank.channel, selectors.EVENT_READ, rank)
        self._selector.register(rank.output, selectors.EVENT_READ, rank.output)
        return rank

    def _greeting(self) -> Hello:
        """Return the first message to a rank, with the present module path and the port of the ranks' store."""
        import sys

        if self._store is None:
            self._store = _store()
        return replace(self._hello, module_path=list(sys.path), store_port=self._store.port)

    def _wait_until_ready(self, ranks: Sequence[RankProcess]) -> None:
        """Wait until each rank is ready or gone. Raises ``PoolFailed`` if one does not load in time."""
        until = time.monotonic() + _RANK_TIMEOUT
        while True:
            for rank in ranks:
                self._note_ready(rank, ranks)
            if all(rank.ready or rank.gone for rank in ranks):
                return
            if time.monotonic() > until:
                self._discard(ranks)
                raise PoolFailed(f"a rank did not load the accelerator within {_RANK_TIMEOUT:.0f} s")
            self.listen(_RANK_TIMEOUT)

    def _note_ready(self, rank: RankProcess, ranks: Sequence[RankProcess]) -> None:
        """Read the first messages of a new rank. Raise PoolFailed if it could not load the accelerator."""
        for raw in rank.inbox:
            message = decode(raw)
            if isinstance(message, LoadFailed):
                self._discard(ranks)
                raise PoolFailed(f"a rank cannot load the accelerator: {message.sentence}")
            rank.ready = isinstance(message, Ready)
        rank.inbox.clear()

    def _give_back(self, ranks: Sequence[RankProcess], execution: Execution, start: RankStart) -> None:
        """Keep the ranks that may be used again, and discard the others."""
        for rank in ranks:
            rank.cases += 1
        if start.isolation is not Isolation.REUSE or not execution.clean:
            self._discard(ranks)
            return
        worn = [rank for rank in ranks if rank.cases >= _MOST_CASES or rank in execution.retired()]
        self._discard(worn)
        self._keep([rank for rank in ranks if rank not in worn])

    def _discard(self, ranks: Sequence[RankProcess]) -> None:
        """Kill ranks without waiting: the fork server reaps them, and the processes that they have started."""
        for rank in ranks:
            if not rank.exited:
                rank.signal(signal.SIGKILL)
            self._forget(rank)

    def _forget(self, process: RankProcess) -> None:
        """Stop listening to a dead process, and close what belongs to it."""
        rank = self._alive.pop(process.number, None)
        if rank is None:
            return
        if rank in self._idle:
            self._idle.remove(rank)
        for source in (rank.channel, rank.output):
            # _hear_rank() has already unregistered the channel of a rank that closed it.
            with contextlib.suppress(KeyError):
                self._selector.unregister(source)
        rank.close()

    # --- messages ---------------------------------------------------------------------------------------------------

    def listen(self, seconds: float) -> bool:
        """Wait for messages of any rank and sort them into inboxes. Return whether there was more than output."""
        heard = False
        for key, _ in self._selector.select(max(0.0, seconds)):
            if self._selector.get_map().get(key.fd) is not key:
                continue  # closed because of an earlier message of the same batch
            if key.data is None:
                heard |= self._hear_fork_server()
            elif isinstance(key.data, LocalRank):
                self._hear_rank(key.data)
                heard = True
            elif not key.data.read():
                self._selector.unregister(key.fileobj)
        return heard

    def _hear_rank(self, rank: LocalRank) -> None:
        """Put the rank's messages into its inbox, or mark the rank as lost where it has closed the channel."""
        try:
            rank.inbox += rank.channel.receive()
        except Closed:
            rank.lost = True
            self._selector.unregister(rank.channel)
            # A rank with a case stays known, because its execution still has to judge the loss.
            if rank in self._idle:
                self._forget(rank)

    def _hear_fork_server(self) -> bool:
        """Note the messages of the fork server, or its death. Returns whether anything changed."""
        assert self._fork_server is not None
        try:
            messages = self._fork_server.channel.receive()
        except Closed:
            self._fork_server.dead = True
            self._selector.unregister(self._fork_server.channel)
            for rank in list(self._alive.values()):
                rank.lost = True  # the kernel kills the ranks with the fork server
            return True
        heard = False
        for message in messages:
            heard |= self._note(message)
        return heard

    def _note(self, message: Message) -> bool:
        """Take one message of the fork server. Return whether it is about a rank that is still known."""
        assert self._fork_server is not None
        if message["kind"] == "up":
            self._fork_server.up, self._fork_server.pid = True, int(message["pid"])
            return True
        rank = self._alive.get(int(message["number"]))
        if rank is None:
            return False
        rank.exited, rank.exit_status = True, int(message["status"])
        if rank in self._idle:
            self._forget(rank)
        return True

    # --- fork server ------------------------------------------------------------------------------------------------

    def _wait_for_fork_server(self, fork_server: ForkServerClient) -> None:
        """Wait until the fork server is up. Raises ``PoolFailed`` with its output where it is not up in time."""
        until = time.monotonic() + _FORK_SERVER_TIMEOUT
        while not fork_server.up:
            if fork_server.dead:
                raise PoolFailed(f"the fork server of the ranks did not start: {fork_server.last_output()}")
            if time.monotonic() > until:
                raise PoolFailed(f"the fork server of the ranks did not start within {_FORK_SERVER_TIMEOUT:.0f} s")
            self.listen(1.0)

    def _restart(self) -> None:
        """Drop all ranks and start with a new fork server."""
        for rank in list(self._alive.values()):
            self._forget(rank)
        if self._fork_server is not None:
            self._fork_server.close()
            self._fork_server = None
        # The new fork server has imported nothing for the cases yet.
        self._imported = frozenset()
        self.start()

    def close(self) -> None:
        """End every rank and the fork server; no process is left when it returns."""
        for rank in list(self._alive.values()):
            self._forget(rank)
        if self._fork_server is not None:
            if not self._fork_server.dead:
                self._selector.unregister(self._fork_server.channel)
            self._fork_server.close()
            self._fork_server = None
        self._selector.close()
        self._store = None


def _store() -> Any:
    """Return the store of this pool, on a port of the loopback that the kernel has chosen and holds."""
    from torch._C._distributed_c10d import TCPStore

    try:
        listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    except OSError as error:
        raise PoolFailed(f"the ranks' store cannot listen on the loopback: {error.strerror}") from None
    _check_loopback(listener)
    port = listener.getsockname()[1]
    return TCPStore("127.0.0.1", port, None, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())


def _check_loopback(listener: socket.socket) -> None:
    """Raise PoolFailed where the loopback is down, as in a container without a network: a store waits five minutes."""
    try:
        # Not to the listener, whose first connection has to be the store's.
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=_LOOPBACK_SECONDS).close()
    except OSError as error:
        listener.close()
        raise PoolFailed(
            f"ranks cannot reach each other over the loopback: {error.strerror or error}. "
            "Bring it up with: ip link set lo up"
        ) from None
