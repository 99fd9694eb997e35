"""Messages over a stream socket: JSON with a length in front, and the types that the pool and its ranks exchange."""

from __future__ import annotations

import contextlib
import errno
import json
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]

_LENGTH = struct.Struct("<I")
#: Bytes of one read. Longer messages come in several.
_CHUNK = 1 << 16
#: File descriptors of one read. The kernel closes any further ones.
_MOST_DESCRIPTORS = 8


#: Name of the file that pytest puts beside a folder shared by ranks; a rank that does not see it has another folder.
SHARED_FOLDER_MARK = ".conformance-shared"
#: Errors that mean that the connection is closed, or that the other host can no longer be reached.
_GONE = frozenset(
    {errno.EPIPE, errno.ECONNRESET, errno.ECONNABORTED, errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH,
     errno.EHOSTDOWN, errno.ENETDOWN}
)  # fmt: skip


class Closed(Exception):
    """The other end of the connection is gone."""


class Channel:
    """One end of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._bytes = bytearray()
        self._descriptors: list[int] = []

    def fileno(self) -> int:
        """Return the descriptor, so that a selector can wait for the channel."""
        return self.connection.fileno()

    def send(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Send one message, with open file descriptors if any. Raise Closed if the other end is gone."""
        body = json.dumps({**message, "descriptors": len(descriptors)} if descriptors else message).encode()
        data = _LENGTH.pack(len(body)) + body
        try:
            # Descriptors travel with the first bytes; the kernel may take only a part of the data with them.
            sent = socket.send_fds(self.connection, [data], descriptors) if descriptors else 0
            self.connection.sendall(data[sent:])
        except OSError as error:
            raise _closed(error) from error

    def receive(self) -> list[Message]:
        """Wait for bytes and return every complete message, possibly none. Raise Closed at the end of the stream."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self.connection, _CHUNK, _MOST_DESCRIPTORS)
        except OSError as error:
            raise _closed(error) from error
        if not data:
            raise Closed
        self._bytes += data
        self._descriptors += descriptors
        return list(self._complete())

    def messages(self) -> Iterator[Message]:
        """Yield every message until the other end is gone."""
        with contextlib.suppress(Closed):
            while True:
                yield from self.receive()

    def close(self) -> None:
        """Close this end."""
        self.connection.close()

    def _complete(self) -> Iterator[Message]:
        """Yield the complete messages. One read may return several messages, or a part of one."""
        while len(self._bytes) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._bytes)
            end = _LENGTH.size + length
            if len(self._bytes) < end:
                return
            message: Message = json.loads(self._bytes[_LENGTH.size : end])
            del self._bytes[:end]
            # The message tells their number, because descriptors of several messages may arrive at once.
            count = message.get("descriptors", 0)
            if count:
                message["descriptors"], self._descriptors = self._descriptors[:count], self._descriptors[count:]
            yield message


def _closed(error: OSError) -> Exception:
    """Return Closed if the error means that the other end is gone, else the error itself."""
    return Closed() if error.errno in _GONE else error


# --- Messages between the pool and a rank -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Hello:
    """First message to a new rank: everything that stays the same for all its cases."""

    spec: str
    capabilities: str | None
    module_path: list[str]
    store_port: int
    seed: int
    store_host: str = "127.0.0.1"
    challenge: str = ""


@dataclass(frozen=True)
class Work:
    """One case for one rank.

    ``nonce`` names the execution; answers with another nonce are ignored. ``deadline`` is in seconds. ``values`` are
    the arguments that the pytest process has made, pickled and in base64. ``device`` is the index of the rank's locked
    device, or None where ranks share devices. ``local`` holds the local rank and the local world size, or None where
    all ranks are on one host. ``claimed`` is another run's answer to the challenge, if that answer is to be judged.
    """

    nonce: str
    case_id: str
    module: str
    file: str
    function: str
    rank: int
    world_size: int
    deadline: float
    values: str
    device: int | None = None
    local: tuple[int, int] | None = None
    claimed: str | None = None


@dataclass(frozen=True)
class End:
    """How the body ended on one rank.

    ``seen`` is the name of an ``observation.Seen``; ``at`` is read from the machine's monotonic clock, in seconds.
    """

    nonce: str
    seen: str
    message: str
    reason: str | None
    trace: str
    at: float
    count: int = 0
    metrics: dict[str, Any] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    answers: dict[str, str] = field(default_factory=dict)
    #: The member of the accelerator without which the body could not go on.
    missing: str = ""


@dataclass(frozen=True)
class Done:
    """Confirmation that a rank has restored its state. ``retire`` says why it must not be used again, or is empty."""

    nonce: str
    leaked: list[str]
    retire: str = ""


@dataclass(frozen=True)
class Ready:
    """A new rank can take work."""

    pid: int


@dataclass(frozen=True)
class LoadFailed:
    """A new rank cannot take work, because the accelerator does not load there."""

    sentence: str


@dataclass(frozen=True)
class Leave:
    """Request to leave the process group. Until then a rank that has ended stays in it, because others may need it."""

    nonce: str


RankMessage = Hello | Work | End | Done | Ready | LoadFailed | Leave
_KINDS = (Hello, Work, End, Done, Ready, LoadFailed, Leave)
_KIND_BY_NAME: dict[str, type[RankMessage]] = {kind.__name__: kind for kind in _KINDS}


def encode(message: RankMessage) -> Message:
    """Return the JSON form of a message."""
    # The fields are plain data. dataclasses.asdict would copy them, which costs time in every case.
    return {"kind": type(message).__name__, **vars(message)}


def decode(message: Message) -> RankMessage:
    """Return the message that ``encode`` has turned into JSON."""
    fields = dict(message)
    return _KIND_BY_NAME[fields.pop("kind")](**fields)
