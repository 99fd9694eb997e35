"""A slot: the process that torchrun started for one rank. It has a zygote, and forks that rank as often as it is told.

    pytest process ──── TCP ────▶ slot (one a rank, on any host) ── guard ── zygote ── rank
    ProvidedPool                  forks, relays, tells its state

So a rank on another host is replaced in milliseconds after a bad case, as here; its exit status, stacks and output
come as messages. The slot ends with the pytest process, and everything it has started ends with it.
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

from conformance.errors import ConformanceError, UsageError
from conformance.ranks import rendezvous as meeting
from conformance.ranks.channel import Channel, Closed, Message
from conformance.ranks.fork_server_client import ZygoteProcess
from conformance.ranks.local_rank import Member
from conformance.ranks.messages import Hello, Unfit, packed, unpacked

#: How often the place of a rank is looked up when it says nothing, in seconds.
_LOOK = 0.05
#: How soon who connects has to say who it is, in seconds.
_FIRST_WORD = 5.0


def main() -> None:
    """Come to torchrun's store, serve one pytest process, end with it."""
    signal.signal(signal.SIGTERM, _leave)
    try:
        _serve_one_run()
    except ConformanceError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(error.exit_status) from None


def _serve_one_run() -> None:
    address, port, numbers = meeting.from_torchrun(os.environ)
    serves = numbers["RANK"] == 0 and not meeting.uses_agent_store()
    store = meeting.open_store(address, port, serve=serves)
    own = meeting.own_address(address, port)
    if "GLOO_SOCKET_IFNAME" not in os.environ:
        interface = meeting.interface_of(own)
        if interface is None:
            raise UsageError(f"no network interface has the address {own}. Set GLOO_SOCKET_IFNAME on this host.")
        os.environ["GLOO_SOCKET_IFNAME"] = interface
    listener = socket.create_server((own, 0), family=socket.AF_INET6 if ":" in own else socket.AF_INET)
    zygote = ZygoteProcess()  # it imports torch while nobody is there yet
    try:
        slot = meeting.publish(store, numbers, listener)
        if slot.rank == 0:
            sys.stdout.write(f"{numbers['WORLD_SIZE']} ranks: pytest … --ranks-from {address}:{port}\n")
            sys.stdout.flush()
        server = Server(_driver(listener, slot.token), zygote)
        try:
            server.serve()
        finally:
            zygote = server.zygote
    finally:
        zygote.close()


def _driver(listener: socket.socket, token: str) -> Channel:
    """The connection of the pytest process, which knows the token; whoever else comes is turned away."""
    while True:
        connection, _ = listener.accept()
        connection.settimeout(_FIRST_WORD)
        channel = Channel(connection)
        with contextlib.suppress(Closed, TimeoutError, ValueError):
            if [message.get("token") for message in channel.receive()] == [token]:
                meeting.lively(connection)
                return channel
        channel.close()


class Server:
    """Does what the pytest process says with the one rank of this slot; ``number`` tells its forks apart."""

    def __init__(self, driver: Channel, zygote: ZygoteProcess) -> None:
        self._driver, self.zygote = driver, zygote
        self._member: Member | None = None
        self._waiting: list[Message] = []  # for the zygote to be up
        self._round = 0
        self._told: dict[str, Any] = {}
        self._news = selectors.DefaultSelector()
        self._news.register(driver, selectors.EVENT_READ, self._hear_driver)
        self._news.register(zygote.channel, selectors.EVENT_READ, self._hear_zygote)

    def serve(self) -> None:
        """Until the pytest process is gone, or the zygote."""
        with contextlib.suppress(Closed):
            while True:
                for key, _ in self._news.select(_LOOK if self._member else None):
                    if self._news.get_map().get(key.fd) is key:
                        key.data()
                self._tell_state()

    # --- from the pytest process ------------------------------------------------------------------------------------

    def _hear_driver(self) -> None:
        for message in self._driver.receive():
            if message["kind"] in ("fork", "import") and not self.zygote.up:
                self._waiting.append(message)
            else:
                self._obey(message)

    def _obey(self, message: Message) -> None:
        kind, member = message["kind"], self._member
        if kind == "fork":
            self._fork(message)
        elif kind == "import":
            self.zygote.channel.send(message)
        elif member is None or member.number != message["number"]:
            return  # of a rank that is no more
        elif kind == "tell":
            member.send(message["message"])
        elif kind == "signal":
            member.signal(signal.Signals(message["signal"]))
        elif kind == "forget":
            member.forget()
            self._round, self._told = message["round"], {}

    def _fork(self, message: Message) -> None:
        self._drop()
        hello = unpacked(message["hello"])
        assert isinstance(hello, Hello)
        member = Member.fork(message["number"], self.zygote.channel, hello, message["environment"])
        self._member, self._round, self._told = member, 0, {}
        self._news.register(member.channel, selectors.EVENT_READ, self._hear_rank)
        self._news.register(member.output, selectors.EVENT_READ, self._hear_output)

    def _drop(self) -> None:
        """Whoever is there was killed by the pytest process, which has forgotten it."""
        if self._member is None:
            return
        self._member.signal(signal.SIGKILL)
        for part in (self._member.channel, self._member.output):
            with contextlib.suppress(KeyError):
                self._news.unregister(part)
        self._member.close()
        self._member = None

    # --- from the rank ----------------------------------------------------------------------------------------------

    def _hear_rank(self) -> None:
        assert self._member is not None
        try:
            messages = self._member.channel.receive()
        except Closed:
            self._news.unregister(self._member.channel)
            self._say("lost")
            return
        for message in messages:
            self._member.output.drain()
            self._tell_state()
            self._say("said", message=message)

    def _hear_output(self) -> None:
        assert self._member is not None
        if not self._member.output.read():
            self._news.unregister(self._member.output)

    def _hear_zygote(self) -> None:
        try:
            messages = self.zygote.channel.receive()
        except Closed:
            self._replace_zygote()
            return
        for message in messages:
            if message["kind"] == "up":
                self.zygote.up = True
                for waiting in self._waiting:
                    self._obey(waiting)
                self._waiting.clear()
            elif self._member is not None and message["number"] == self._member.number:
                self._member.output.drain()
                self._tell_state()
                self._say("exited", status=message["status"])

    def _replace_zygote(self) -> None:
        """It has died, and its rank with it. One that does not even start has nobody to take its place."""
        old = self.zygote
        self._news.unregister(old.channel)
        if not old.up:
            unfit = packed(Unfit(f"the zygote that forks ranks did not start: {old.last_words()}"))
            for request in self._waiting:
                self._driver.send({"kind": "said", "number": request.get("number"), "message": unfit})
            raise Closed
        if self._member:
            self._tell_state()
            self._say("lost")
            self._drop()
        old.close()
        self.zygote = ZygoteProcess()
        self._news.register(self.zygote.channel, selectors.EVENT_READ, self._hear_zygote)

    # --- to the pytest process --------------------------------------------------------------------------------------

    def _tell_state(self) -> None:
        """What the pool would see for itself, were the rank on its host; only what is new."""
        member = self._member
        if member is None:
            return
        place = asdict(member.place())
        now = {"place": place, "stacks": member.stacks_size(), "output": member.output.size}
        if now == self._told:
            return
        self._told = now
        self._say("state", round=self._round, place=place, stacks=member.read_stacks(), output=member.output.text())

    def _say(self, kind: str, **more: Any) -> None:
        assert self._member is not None
        self._driver.send({"kind": kind, "number": self._member.number, **more})


def _leave(number: int, frame: object) -> None:
    """torchrun ends its processes with SIGTERM; what this one has started has to end first."""
    del frame
    raise SystemExit(128 + number)
