"""A rank of this host, as the pool sees it: its channel, output, stacks and recorded collectives."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from conformance.process.python import child_python
from conformance.ranks.channel import Channel, Closed, Hello, Message, encode
from conformance.ranks.collective_recorder import CollectiveRecord, CollectiveRecorder
from conformance.ranks.output import Output

#: Bytes of stacks that are read. A message shows far fewer.
_MOST_STACKS = 1 << 18
_OWN_INTERPRETER = "from conformance.ranks.fork_server import become_rank; become_rank()"


@dataclass
class LocalRank:
    """Process of one rank.

    ``exit_status`` is set when the fork server has reaped the process, ``lost`` when its channel has ended.
    """

    number: int
    fork_server: Channel
    channel: Channel
    output: Output
    stacks: int
    recorder: CollectiveRecorder
    ready: bool = False
    cases: int = 0
    #: Its rank and its device's index in the cases that it has run. Libraries keep what they compute for a rank and for
    #: a device, as the shape of a shard and its place. The index is None where ranks share devices.
    place: tuple[int, int | None] | None = None
    last_case: str = ""
    exit_status: int | None = None
    exited: bool = False
    lost: bool = False
    inbox: list[Message] = field(default_factory=list)
    #: Name of its host; empty for the host on which pytest runs.
    where: str = ""

    @classmethod
    def fork(
        cls, number: int, fork_server: Channel, hello: Hello, environment: Mapping[str, str] | None = None
    ) -> LocalRank:
        """Let the fork server fork a rank and return it. It sends Ready or LoadFailed when it has tried to load.

        With an ``environment``, even an empty one, the rank is a new interpreter, started with those variables. Raises
        ``Closed`` if the fork server is dead.
        """
        ours, theirs = socket.socketpair()
        read, write = os.pipe()
        # The files have no names, so nothing is left when all processes are killed. Both ends share the offset, so the
        # files are opened for appending.
        stacks, records = (_file(f"conformance-{name}-{number}") for name in ("stacks", "collectives"))
        member = cls(number, fork_server, Channel(ours), Output(read), stacks, CollectiveRecorder(records))
        command = [] if environment is None else child_python(_OWN_INTERPRETER)
        request = {"kind": "fork", "number": number, "command": command, "environment": dict(environment or {})}
        try:
            try:
                fork_server.send(request, (theirs.fileno(), write, stacks, records))
            finally:
                # Copies of the rank's ends: while one is open here, the end of the rank's channel would not be seen.
                theirs.close()
                os.close(write)
                os.close(records)
            member.channel.send(encode(hello))
        except Closed:
            member.close()
            raise
        return member

    @property
    def gone(self) -> bool:
        """Tell whether the process has ended or can no longer be reached."""
        return self.exited or self.lost

    def send(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Send a message. If the rank is gone this is no error here: its death arrives as a message of its own."""
        with contextlib.suppress(Closed):
            self.channel.send(message, descriptors)

    def position(self) -> CollectiveRecord:
        """Return the rank's newest record."""
        return self.recorder.read()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal through the fork server, which knows that the process is still this rank."""
        with contextlib.suppress(Closed):
            self.fork_server.send({"kind": "signal", "number": self.number, "signal": int(number)})

    def forget(self) -> None:
        """Clear output and stacks of earlier cases."""
        self.output.drain()
        self.output.clear()
        os.ftruncate(self.stacks, 0)

    def stacks_size(self) -> int:
        """Return how many bytes of stacks the rank has written."""
        return os.fstat(self.stacks).st_size

    def read_stacks(self) -> str:
        """Return the stacks that the rank has written."""
        return os.pread(self.stacks, _MOST_STACKS, 0).decode(errors="replace")

    def close(self) -> None:
        """Close all descriptors of the rank."""
        self.channel.close()
        self.output.close()
        self.recorder.close()
        os.close(self.stacks)


def _file(name: str) -> int:
    """Return the descriptor of a new file in memory that is opened for appending."""
    import fcntl

    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_APPEND)
    return descriptor
