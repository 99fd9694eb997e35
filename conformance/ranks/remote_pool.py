"""Pool of ranks that torchrun provides, on this host or on other hosts, over TCP."""

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

from conformance.base.errors import UsageError
from conformance.plan.case import Isolation
from conformance.ranks import rendezvous
from conformance.ranks.channel import Channel, Closed, Hello, Message, encode
from conformance.ranks.collective_recorder import CollectiveRecord
from conformance.ranks.device_locks import LockedDevices
from conformance.ranks.execution import RankProcess
from conformance.ranks.pool import Pool, PoolFailed, RankSlot, RankStart
from conformance.ranks.rendezvous import AgentAddress


class RemoteOutput:
    """Output of a remote rank, as its agent has last reported it."""

    reported = ""

    def text(self) -> str:
        """Return the first and the last part of the output."""
        return self.reported

    def drain(self) -> None:
        """Do nothing: output arrives in messages of the agent."""


@dataclass(eq=False)
class AgentConnection:
    """Connection to one agent, with the rank that runs there now."""

    address: AgentAddress
    channel: Channel
    rank: RemoteRank | None = None
    dead: bool = False

    def send(self, message: Message) -> None:
        """Send a message. If the agent is gone this is no error here: its end arrives as a message of its own."""
        try:
            self.channel.send(message)
        except Closed:
            self.lose()

    def lose(self) -> None:
        """Note that the agent is gone, and its rank with it."""
        self.dead = True
        if self.rank:
            self.rank.lost = True


@dataclass(eq=False)
class RemoteRank:
    """Process of a rank behind an agent."""

    number: int
    agent: AgentConnection
    #: Its rank in the cases that it runs, as for a ``LocalRank``.
    place: int
    ready: bool = False
    cases: int = 0
    last_case: str = ""
    exit_status: int | None = None
    exited: bool = False
    lost: bool = False
    inbox: list[Message] = field(default_factory=list)
    output: RemoteOutput = field(default_factory=RemoteOutput)
    #: Number of the execution, so that late reports about an earlier one are recognised.
    _execution: int = 0
    _record: CollectiveRecord = field(default_factory=CollectiveRecord)
    _stacks: str = ""

    @property
    def where(self) -> str:
        """Name of the rank's host."""
        return self.agent.address.host

    @property
    def gone(self) -> bool:
        """Tell whether the process has ended or can no longer be reached."""
        return self.exited or self.lost

    def hear(self, message: Message) -> None:
        """Take one message of the agent about this rank."""
        kind = message["kind"]
        if kind == "said":
            # Hosts have different clocks, so the time of arrival counts.
            said = message["message"]
            self.inbox.append({**said, "at": time.monotonic()} if "at" in said else said)
        elif kind == "exited":
            self.exited, self.exit_status = True, int(message["status"])
        elif kind == "lost":
            self.lost = True
        elif kind == "state" and message["execution"] == self._execution:
            self._record, self._stacks = CollectiveRecord(**message["position"]), message["stacks"]
            self.output.reported = message["output"]

    def send(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Send a message to the rank. Descriptors of device locks are of the pytest process's host only."""
        del descriptors
        self._tell("tell", message=message)

    def position(self) -> CollectiveRecord:
        """Return the rank's newest record, as the agent has reported it."""
        return self._record

    def signal(self, number: signal.Signals) -> None:
        """Send a signal through the agent."""
        self._tell("signal", signal=int(number))

    def forget(self) -> None:
        """Clear what belongs to earlier cases, also reports that are still on their way."""
        self._execution += 1
        self._record, self._stacks, self.output.reported = CollectiveRecord(), "", ""
        self._tell("forget", execution=self._execution)

    def stacks_size(self) -> int:
        """Return how many characters of stacks the agent has reported."""
        return len(self._stacks)

    def read_stacks(self) -> str:
        """Return the stacks that the agent has reported."""
        return self._stacks

    def close(self) -> None:
        """Do nothing: the agent closes the rank's descriptors."""

    def _tell(self, kind: str, **fields: Any) -> None:
        self.agent.send({"kind": kind, "number": self.number, **fields})


class RemotePool(Pool):
    """Pool over agents. Each agent has at most one rank, and forks another when that one is discarded."""

    def __init__(self, hello: Hello, endpoint: str, *, own_devices: bool) -> None:
        super().__init__(hello)
        host, port = rendezvous.parsed(endpoint)
        self._hello = replace(hello, store_host=host, store_port=port)
        self._endpoint, self._own_devices = endpoint, own_devices
        self._agents = [self._connect(address) for address in rendezvous.agents_at(endpoint)]

    @property
    def most_ranks(self) -> int | None:
        """Number of ranks that torchrun has started."""
        return len(self._agents)

    def _connect(self, address: AgentAddress) -> AgentConnection:
        """Connect to an agent and present the run's token. Raises ``UsageError`` where the agent cannot be reached."""
        try:
            connection = socket.create_connection((address.address, address.port), timeout=rendezvous.TIMEOUT)
        except OSError as error:
            raise UsageError(
                f"rank {address.rank} listens at {address.address}:{address.port} ({address.host}), but cannot be "
                f"reached: {error.strerror or 'no answer'}. Let the hosts reach each other on all ports."
            ) from None
        agent = AgentConnection(address, Channel(rendezvous.enable_keepalive(connection)))
        agent.send({"kind": "driver", "token": address.token})
        self._selector.register(agent.channel, selectors.EVENT_READ, agent)
        return agent

    def start(self) -> None:
        """Do nothing: torchrun has started the agents."""

    def close(self) -> None:
        """Close the connections. Each agent then ends, and everything that it has started."""
        for agent in self._agents:
            agent.channel.close()
        self._selector.close()

    # --- ranks ------------------------------------------------------------------------------------------------------

    def _take(self, count: int, start: RankStart, devices: LockedDevices | None) -> list[Any]:
        """Return ``count`` ready ranks, warm or newly forked. Raises ``PoolFailed`` when ranks die three times."""
        del devices  # an agent's ranks keep the device that torchrun gave it
        for _ in range(3):
            # Hear all news first: an agent or a rank may have died since the last case.
            while self.listen(0):
                pass
            agents = self._choose(count)
            new = start.imports - self._imported
            self._imported |= new
            for agent in self._agents if new else ():
                agent.send({"kind": "import", "names": sorted(new)})
                agent.rank = None  # it was forked without these modules
            ranks = [
                self._warm_rank(agent, start, place) or self._forked(agent, start, place)
                for place, agent in enumerate(agents)
            ]
            self._wait_until_ready(ranks)
            if not any(rank.gone for rank in ranks):
                return ranks
            self._discard(ranks)
        raise PoolFailed(f"{count} ranks of {self._endpoint} could not be started: they died three times in a row")

    def _choose(self, count: int) -> list[AgentConnection]:
        """Return ``count`` agents on as many hosts as possible, in the order of their ranks."""
        alive = [agent for agent in self._agents if not agent.dead]
        if len(alive) < count:
            gone = ", ".join(f"rank {a.address.rank} on {a.address.host}" for a in self._agents if a.dead)
            raise PoolFailed(
                f"{count} ranks are needed, and {len(alive)} of torchrun's {len(self._agents)} at {self._endpoint} are "
                f"left; gone: {gone}. Start torchrun again, and then pytest with --resume."
            )
        turns: defaultdict[int, int] = defaultdict(int)
        order = []
        for agent in alive:
            order.append((turns[agent.address.node], agent.address.rank, agent))
            turns[agent.address.node] += 1
        # By turns: the first rank of each host, then the second of each host.
        chosen = [agent for _, _, agent in sorted(order, key=lambda entry: entry[:2])[:count]]
        return sorted(chosen, key=lambda agent: agent.address.rank)

    def _warm_rank(self, agent: AgentConnection, start: RankStart, place: int) -> RemoteRank | None:
        """Return the agent's idle process if it has run as rank ``place``; end a process that has run as another."""
        rank = agent.rank
        if rank is None or rank.gone or start.isolation is not Isolation.REUSE:
            return None
        if rank.place == place:
            return rank
        self._discard([rank])
        return None

    def _forked(self, agent: AgentConnection, start: RankStart, place: int) -> RemoteRank:
        """Ask the agent to fork rank ``place``, and return that rank, which is not ready yet."""
        agent.rank = RemoteRank(next(self._numbers), agent, place)
        hello = encode(replace(self._hello, module_path=list(sys.path)))
        variables = None if start.variables is None else dict(start.variables)
        agent.send({"kind": "fork", "number": agent.rank.number, "hello": hello, "environment": variables})
        return agent.rank

    def _keep(self, ranks: Sequence[Any]) -> None:
        """Do nothing: ranks stay with their agents."""

    def _forget(self, process: RankProcess) -> None:
        """Forget the rank of an agent."""
        for agent in self._agents:
            # Only the pool forgets it. The agent kills the process when it forks the next one.
            if agent.rank is process:
                agent.rank = None

    def _slot(self, number: int, ranks: Sequence[Any], devices: LockedDevices | None) -> RankSlot:
        """Return the device and the local rank for rank ``number`` of a case; a device only where ranks own theirs."""
        del devices  # locks of this host do not concern other hosts
        addresses = [rank.agent.address for rank in ranks]
        own = addresses[number]
        same_host = [address.rank for address in addresses if address.node == own.node]
        local = (same_host.index(own.rank), len(same_host))
        return RankSlot(own.local_rank if self._own_devices else None, (), local)

    # --- messages ---------------------------------------------------------------------------------------------------

    def listen(self, seconds: float) -> bool:
        """Wait for messages of any agent. Return whether there was more than output and positions."""
        heard = False
        for key, _ in self._selector.select(max(0.0, seconds)):
            heard |= self._hear_agent(key.data)
        return heard

    def _hear_agent(self, agent: AgentConnection) -> bool:
        """Pass the agent's messages to its rank. Returns whether there was more than a state."""
        try:
            messages = agent.channel.receive()
        except Closed:
            agent.lose()
            self._selector.unregister(agent.channel)
            return True
        heard = False
        for message in messages:
            # Messages of a rank that was discarded may still be under way.
            if agent.rank and agent.rank.number == message["number"]:
                agent.rank.hear(message)
                heard |= message["kind"] != "state"
        return heard
