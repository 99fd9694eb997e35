"""Agent: the process that torchrun starts for one rank. It has a fork server, and forks that rank as often as asked.

    pytest process ──── TCP ────▶ agent (one per rank, on any host) ── guard ── fork server ── rank
    RemotePool                    forks, relays, reports state

So a rank on another host is replaced in milliseconds after a bad case, as on this host; its exit status, stacks and
output arrive as messages. The agent ends with the pytest process, and everything that it has started ends with it.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import sys
from dataclasses import asdict
from typing import Any

from conformance.base.errors import ConformanceError, UsageError
from conformance.process.compiler_cache import own_compiler_cache
from conformance.ranks import rendezvous
from conformance.ranks.channel import Channel, Closed, Hello, LoadFailed, Message, decode, encode
from conformance.ranks.fork_server_client import ForkServerClient
from conformance.ranks.local_rank import LocalRank

#: Seconds between two looks at the position of a rank that sends nothing.
_POLL = 0.05
#: Seconds within which a client has to send the token.
_TOKEN_TIMEOUT = 5.0


def main() -> None:
    """Register with torchrun's store, serve one pytest process, and end with it."""
    signal.signal(signal.SIGTERM, _leave)
    try:
        with own_compiler_cache():
            _serve_one_run()
    except ConformanceError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(error.exit_status) from None


def _serve_one_run() -> None:
    """Publish this agent, wait for one pytest process, and serve it until it leaves."""
    address, port, numbers = rendezvous.from_torchrun(os.environ)
    serves = numbers["RANK"] == 0 and not rendezvous.uses_agent_store()
    store = rendezvous.open_store(address, port, serve=serves)
    own = rendezvous.own_address(address, port)
    # Without it, gloo takes the address of the host's name, which is often the loopback address.
    if "GLOO_SOCKET_IFNAME" not in os.environ:
        interface = rendezvous.interface_of(own)
        if interface is None:
            raise UsageError(f"no network interface has the address {own}. Set GLOO_SOCKET_IFNAME on this host.")
        os.environ["GLOO_SOCKET_IFNAME"] = interface
    listener = socket.create_server((own, 0), family=socket.AF_INET6 if ":" in own else socket.AF_INET)
    fork_server = ForkServerClient()  # it imports torch while no client is connected yet
    try:
        published = rendezvous.publish(store, numbers, listener)
        if published.rank == 0:
            sys.stdout.write(f"{numbers['WORLD_SIZE']} ranks: pytest … --ranks-from {address}:{port}\n")
            sys.stdout.flush()
        agent = Agent(_client(listener, published.token), fork_server)
        try:
            agent.serve()
        finally:
            fork_server = agent.fork_server
    finally:
        fork_server.close()


def _client(listener: socket.socket, token: str) -> Channel:
    """Wait for the pytest process, which knows the token, and return its channel. Turn away every other client."""
    while True:
        connection, _ = listener.accept()
        # A client that connects and sends nothing must not keep pytest from its turn.
        connection.settimeout(_TOKEN_TIMEOUT)
        channel = Channel(connection)
        with contextlib.suppress(Closed, TimeoutError, ValueError):
            if [message.get("token") for message in channel.receive()] == [token]:
                rendezvous.enable_keepalive(connection)
                return channel
        channel.close()


class Agent:
    """Server that starts, signals and watches one rank for the pytest process."""

    def __init__(self, client: Channel, fork_server: ForkServerClient) -> None:
        self._client, self.fork_server = client, fork_server
        self._rank: LocalRank | None = None
        self._waiting: list[Message] = []  # requests that need the fork server to be up
        self._execution = 0
        self._reported: dict[str, Any] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(client, selectors.EVENT_READ, self._hear_client)
        self._selector.register(fork_server.channel, selectors.EVENT_READ, self._hear_fork_server)

    def serve(self) -> None:
        """Serve until the pytest process or the fork server is gone."""
        with contextlib.suppress(Closed):
            while True:
                # Records and stacks lie in memory and files, which wake no selector, so they are polled.
                for key, _ in self._selector.select(_POLL if self._rank else None):
                    if self._selector.get_map().get(key.fd) is key:
                        key.data()
                self._report_state()

    # --- from the pytest process ------------------------------------------------------------------------------------

    def _hear_client(self) -> None:
        """Handle the client's messages. Those that need the fork server wait until it is up."""
        for message in self._client.receive():
            if message["kind"] in ("fork", "import") and not self.fork_server.up:
                self._waiting.append(message)
            else:
                self._handle(message)

    def _handle(self, message: Message) -> None:
        """Carry out one message of the client. Messages about an earlier rank are dropped."""
        kind, rank = message["kind"], self._rank
        if kind == "fork":
            self._fork(message)
        elif kind == "import":
            self.fork_server.channel.send(message)
        elif rank is None or rank.number != message["number"]:
            return  # about a rank that no longer exists
        elif kind == "tell":
            rank.send(message["message"])
        elif kind == "signal":
            rank.signal(signal.Signals(message["signal"]))
        elif kind == "forget":
            rank.forget()
            self._execution, self._reported = message["execution"], {}

    def _fork(self, message: Message) -> None:
        """Replace the rank by a newly forked one and listen to it."""
        self._drop()
        hello = decode(message["hello"])
        assert isinstance(hello, Hello)
        rank = LocalRank.fork(message["number"], self.fork_server.channel, hello, message["environment"])
        self._rank, self._execution, self._reported = rank, 0, {}
        self._selector.register(rank.channel, selectors.EVENT_READ, self._hear_rank)
        self._selector.register(rank.output, selectors.EVENT_READ, self._hear_output)

    def _drop(self) -> None:
        """Kill the current rank, which the pytest process has discarded."""
        if self._rank is None:
            return
        self._rank.signal(signal.SIGKILL)
        for source in (self._rank.channel, self._rank.output):
            with contextlib.suppress(KeyError):
                self._selector.unregister(source)
        self._rank.close()
        self._rank = None

    # --- from the rank ----------------------------------------------------------------------------------------------

    def _hear_rank(self) -> None:
        """Pass the rank's messages on to the client, each after the state that belongs to it."""
        assert self._rank is not None
        try:
            messages = self._rank.channel.receive()
        except Closed:
            self._selector.unregister(self._rank.channel)
            self._say("lost")
            return
        for message in messages:
            # The state goes first: the client must have output and position when a message ends the case.
            self._rank.output.drain()
            self._report_state()
            self._say("said", message=message)

    def _hear_output(self) -> None:
        assert self._rank is not None
        if not self._rank.output.read():
            self._selector.unregister(self._rank.output)

    def _hear_fork_server(self) -> None:
        """Handle the messages of the fork server: it is up, or the rank has exited. A dead server is replaced."""
        try:
            messages = self.fork_server.channel.receive()
        except Closed:
            self._replace_fork_server()
            return
        for message in messages:
            if message["kind"] == "up":
                self.fork_server.up = True
                for waiting in self._waiting:
                    self._handle(waiting)
                self._waiting.clear()
            elif self._rank is not None and message["number"] == self._rank.number:
                self._rank.output.drain()
                self._report_state()
                self._say("exited", status=message["status"])

    def _replace_fork_server(self) -> None:
        """Start another fork server in place of a dead one. Raise Closed if the dead one never started."""
        old = self.fork_server
        self._selector.unregister(old.channel)
        # It would not start at the second attempt either, and the client has to learn why.
        if not old.up:
            failed = encode(LoadFailed(f"the fork server of the ranks did not start: {old.last_output()}"))
            for request in self._waiting:
                self._client.send({"kind": "said", "number": request.get("number"), "message": failed})
            raise Closed
        if self._rank:
            self._report_state()
            self._say("lost")
            self._drop()
        old.close()
        self.fork_server = ForkServerClient()
        self._selector.register(self.fork_server.channel, selectors.EVENT_READ, self._hear_fork_server)

    # --- to the pytest process --------------------------------------------------------------------------------------

    def _report_state(self) -> None:
        """Send position, stacks and output of the rank, if they have changed."""
        rank = self._rank
        if rank is None:
            return
        position = asdict(rank.position())
        now = {"position": position, "stacks": rank.stacks_size(), "output": rank.output.size}
        if now == self._reported:
            return
        self._reported = now
        stacks, output = rank.read_stacks(), rank.output.text()
        self._say("state", execution=self._execution, position=position, stacks=stacks, output=output)

    def _say(self, kind: str, **fields: Any) -> None:
        assert self._rank is not None
        self._client.send({"kind": kind, "number": self._rank.number, **fields})


def _leave(number: int, frame: object) -> None:
    """End this process in order: torchrun sends SIGTERM, and the processes that this one has started end first."""
    del frame
    raise SystemExit(128 + number)
