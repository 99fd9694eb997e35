"""Ranks that torchrun provides, on this host or on others: the same pool, over TCP."""

from __future__ import annotations

import selectors
import signal
import socket
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from conformance.case import Isolation
from conformance.errors import UsageError
from conformance.ranks import rendezvous as meeting
from conformance.ranks.channel import Channel, Closed, Message
from conformance.ranks.collective_recorder import Entry
from conformance.ranks.device_locks import Lease
from conformance.ranks.execution import RankProcess
from conformance.ranks.messages import Hello, packed
from conformance.ranks.pool import Pool, PoolFailed, Seat, Start
from conformance.ranks.rendezvous import Slot


class RemoteOutput:
    """What a rank has printed, as its slot has told."""

    told = ""

    def text(self) -> str:
        return self.told

    def drain(self) -> None:
        """It comes as messages."""


@dataclass(eq=False)
class Place:
    """One slot as the pool sees it: the connection, and the rank that runs there now."""

    slot: Slot
    channel: Channel
    member: RemoteMember | None = None
    dead: bool = False

    def send(self, message: Message) -> None:
        """What cannot be delivered is not an error here: that the slot is gone comes as news of its own."""
        try:
            self.channel.send(message)
        except Closed:
            self.lose()

    def lose(self) -> None:
        self.dead = True
        if self.member:
            self.member.lost = True


@dataclass(eq=False)
class RemoteMember:
    """A rank's process behind a slot."""

    number: int
    place_of_slot: Place
    ready: bool = False
    cases: int = 0
    last_case: str = ""
    exit_status: int | None = None
    exited: bool = False
    lost: bool = False
    inbox: list[Message] = field(default_factory=list)
    output: RemoteOutput = field(default_factory=RemoteOutput)
    _round: int = 0
    _entry: Entry = field(default_factory=Entry)
    _stacks: str = ""

    @property
    def where(self) -> str:
        return self.place_of_slot.slot.host

    @property
    def gone(self) -> bool:
        return self.exited or self.lost

    def hear(self, message: Message) -> None:
        """One message of the slot about this rank."""
        kind = message["kind"]
        if kind == "said":
            # Hosts have clocks of their own: what counts is when it came.
            said = message["message"]
            self.inbox.append({**said, "at": time.monotonic()} if "at" in said else said)
        elif kind == "exited":
            self.exited, self.exit_status = True, int(message["status"])
        elif kind == "lost":
            self.lost = True
        elif kind == "state" and message["round"] == self._round:
            self._entry, self._stacks = Entry(**message["place"]), message["stacks"]
            self.output.told = message["output"]

    def send(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        del descriptors  # leases are of this host
        self._tell("tell", message=message)

    def place(self) -> Entry:
        return self._entry

    def signal(self, number: signal.Signals) -> None:
        self._tell("signal", signal=int(number))

    def forget(self) -> None:
        """Clear what belongs to earlier rounds; what the slot has told of them and is still on its way, too."""
        self._round += 1
        self._entry, self._stacks, self.output.told = Entry(), "", ""
        self._tell("forget", round=self._round)

    def stacks_size(self) -> int:
        return len(self._stacks)

    def read_stacks(self) -> str:
        return self._stacks

    def close(self) -> None:
        """The slot closes what it has of it."""

    def _tell(self, kind: str, **more: Any) -> None:
        self.place_of_slot.send({"kind": kind, "number": self.number, **more})


class ProvidedPool(Pool):
    """The pool over slots: each has one rank at most, and forks another when that one is no longer wanted."""

    def __init__(self, hello: Hello, endpoint: str, *, own_devices: bool) -> None:
        super().__init__(hello)
        host, port = meeting.parsed(endpoint)
        self._hello = replace(hello, store_host=host, store_port=port)
        self._endpoint, self._own_devices = endpoint, own_devices
        self._places = [self._connect(slot) for slot in meeting.slots_at(endpoint)]

    @property
    def most_ranks(self) -> int | None:
        return len(self._places)

    def _connect(self, slot: Slot) -> Place:
        try:
            connection = socket.create_connection((slot.address, slot.port), timeout=meeting.PATIENCE)
        except OSError as error:
            raise UsageError(
                f"rank {slot.rank} waits at {slot.address}:{slot.port} ({slot.host}), and cannot be reached: "
                f"{error.strerror or 'no answer'}. Let the hosts reach each other on all ports."
            ) from None
        place = Place(slot, Channel(meeting.lively(connection)))
        place.send({"kind": "driver", "token": slot.token})
        self._news.register(place.channel, selectors.EVENT_READ, place)
        return place

    def start(self) -> None:
        """The slots have begun by themselves."""

    def close(self) -> None:
        """The slots end with their connections, and with them all they have started."""
        for place in self._places:
            place.channel.close()
        self._news.close()

    # --- ranks ------------------------------------------------------------------------------------------------------

    def _take(self, count: int, start: Start) -> list[Any]:
        for _ in range(3):
            while self.listen(0):
                pass
            places = self._spread(count)
            new = start.imports - self._imported
            self._imported |= new
            for place in self._places if new else ():
                place.send({"kind": "import", "names": sorted(new)})
                place.member = None  # forked without it
            ranks = [self._warm_at(place, start) or self._forked(place, start) for place in places]
            self._wait_until_ready(ranks)
            if not any(member.gone for member in ranks):
                return ranks
            self._discard(ranks)
        raise PoolFailed(f"{count} ranks of {self._endpoint} could not be had: they died three times")

    def _spread(self, count: int) -> list[Place]:
        """Slots of as many hosts as there are, in the order of their ranks."""
        alive = [place for place in self._places if not place.dead]
        if len(alive) < count:
            gone = ", ".join(f"rank {p.slot.rank} on {p.slot.host}" for p in self._places if p.dead)
            raise PoolFailed(
                f"{count} ranks are wanted, and {len(alive)} of torchrun's {len(self._places)} at {self._endpoint} are "
                f"left; gone: {gone}. Start torchrun again, and then pytest with --resume."
            )
        turns: defaultdict[int, int] = defaultdict(int)
        order = []
        for place in alive:
            order.append((turns[place.slot.node], place.slot.rank, place))
            turns[place.slot.node] += 1
        chosen = [place for _, _, place in sorted(order, key=lambda one: one[:2])[:count]]
        return sorted(chosen, key=lambda place: place.slot.rank)

    def _warm(self, count: int) -> list[Any]:
        """Those that the next case would get, where all of them are warm."""
        try:
            members = [place.member for place in self._spread(count)]
        except PoolFailed:
            return []
        return members if all(member and member.ready and not member.gone for member in members) else []

    def _warm_at(self, place: Place, start: Start) -> RemoteMember | None:
        member = place.member
        return member if member and not member.gone and start.isolation is Isolation.REUSE else None

    def _forked(self, place: Place, start: Start) -> RemoteMember:
        place.member = RemoteMember(next(self._numbers), place)
        hello = packed(replace(self._hello, module_path=list(sys.path)))
        variables = None if start.variables is None else dict(start.variables)
        place.send({"kind": "fork", "number": place.member.number, "hello": hello, "environment": variables})
        return place.member

    def _keep(self, ranks: Sequence[Any]) -> None:
        """They stay where they are."""

    def _forget(self, one: RankProcess) -> None:
        for place in self._places:
            if place.member is one:
                place.member = None

    def _seat(self, rank: int, ranks: Sequence[Any], devices: Lease | None) -> Seat:
        del devices  # those of this host are no concern of other hosts
        slots = [member.place_of_slot.slot for member in ranks]
        mine = slots[rank]
        neighbours = [slot.rank for slot in slots if slot.node == mine.node]
        return Seat(mine.local_rank if self._own_devices else None, (), (neighbours.index(mine.rank), len(neighbours)))

    # --- news -------------------------------------------------------------------------------------------------------

    def listen(self, seconds: float) -> bool:
        heard = False
        for key, _ in self._news.select(max(0.0, seconds)):
            heard |= self._hear_place(key.data)
        return heard

    def _hear_place(self, place: Place) -> bool:
        """Whether there was anything but what a rank has printed, or where it is."""
        try:
            messages = place.channel.receive()
        except Closed:
            place.lose()
            self._news.unregister(place.channel)
            return True
        heard = False
        for message in messages:
            if place.member and place.member.number == message["number"]:
                place.member.hear(message)
                heard |= message["kind"] != "state"
        return heard
