"""One rank as the pool sees it: its channel, what it prints, its stacks, its place in the ledger."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from conformance.process.python import child_python
from conformance.ranks.channel import Channel, Closed, Message
from conformance.ranks.collective_recorder import Entry, Ledger
from conformance.ranks.messages import Hello, packed
from conformance.ranks.output import Output

_MOST_STACKS = 1 << 18
_OWN_INTERPRETER = "from conformance.ranks.fork_server import become_rank; become_rank()"


@dataclass
class Member:
    """A rank's process. ``exit_status`` is set when the zygote has reaped it, ``lost`` when its channel has ended."""

    number: int
    zygote: Channel
    channel: Channel
    output: Output
    stacks: int
    ledger: Ledger
    ready: bool = False
    cases: int = 0
    last_case: str = ""
    exit_status: int | None = None
    exited: bool = False
    lost: bool = False
    inbox: list[Message] = field(default_factory=list)
    #: The name of its host; empty for the one on which pytest runs.
    where: str = ""

    @classmethod
    def fork(cls, number: int, zygote: Channel, hello: Hello, environment: Mapping[str, str] | None = None) -> Member:
        """Have the zygote fork one; it says Ready, or Unfit, when it has loaded the accelerator.

        With an ``environment``, an empty one too, it gets an interpreter of its own, started with that.
        """
        ours, theirs = socket.socketpair()
        read, write = os.pipe()
        # No file has a name, so nothing is left when everyone is killed. Both ends share the offset: append, always.
        stacks, ledger = (_file(f"conformance-{what}-{number}") for what in ("stacks", "ledger"))
        member = cls(number, zygote, Channel(ours), Output(read), stacks, Ledger(ledger))
        try:
            command = [] if environment is None else child_python(_OWN_INTERPRETER)
            request = {"kind": "fork", "number": number, "command": command, "environment": dict(environment or {})}
            zygote.send(request, (theirs.fileno(), write, stacks, ledger))
        finally:
            theirs.close()
            os.close(write)
            os.close(ledger)
        member.channel.send(packed(hello))
        return member

    @property
    def gone(self) -> bool:
        return self.exited or self.lost

    def send(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """What cannot be delivered is not an error here: that the rank is gone comes as news of its own."""
        with contextlib.suppress(Closed):
            self.channel.send(message, descriptors)

    def place(self) -> Entry:
        return self.ledger.read()

    def signal(self, number: signal.Signals) -> None:
        """Through the zygote, which knows that the process is still that rank."""
        with contextlib.suppress(Closed):
            self.zygote.send({"kind": "signal", "number": self.number, "signal": int(number)})

    def forget(self) -> None:
        """Clear what belongs to earlier rounds."""
        self.output.drain()
        self.output.clear()
        os.ftruncate(self.stacks, 0)

    def stacks_size(self) -> int:
        return os.fstat(self.stacks).st_size

    def read_stacks(self) -> str:
        return os.pread(self.stacks, _MOST_STACKS, 0).decode(errors="replace")

    def close(self) -> None:
        self.channel.close()
        self.output.close()
        self.ledger.close()
        os.close(self.stacks)


def _file(name: str) -> int:
    import fcntl

    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_APPEND)
    return descriptor
