"""Whole messages over a stream socket: JSON behind a length. The same at every end."""

from __future__ import annotations

import contextlib
import errno
import json
import socket
import struct
from collections.abc import Iterator, Sequence
from typing import Any

Message = dict[str, Any]

_LENGTH = struct.Struct("<I")
_CHUNK = 1 << 16
_MOST_DESCRIPTORS = 8


#: What the kernel says of a connection that is no more, and of a host that cannot be reached any longer.
_GONE = frozenset(
    {errno.EPIPE, errno.ECONNRESET, errno.ECONNABORTED, errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH,
     errno.EHOSTDOWN, errno.ENETDOWN}
)  # fmt: skip


class Closed(Exception):
    """The other end is gone."""


class Channel:
    """One end of a connection. ``receive`` gives every message that has arrived: two may come in one read."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._bytes = bytearray()
        self._descriptors: list[int] = []

    def fileno(self) -> int:
        return self.connection.fileno()

    def send(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Send one message, and open files with it; Closed if nobody is there."""
        body = json.dumps({**message, "descriptors": len(descriptors)} if descriptors else message).encode()
        data = _LENGTH.pack(len(body)) + body
        try:
            sent = socket.send_fds(self.connection, [data], descriptors) if descriptors else 0
            self.connection.sendall(data[sent:])
        except OSError as error:
            raise _closed(error) from error

    def receive(self) -> list[Message]:
        """Wait for bytes; every message that is complete, maybe none. Closed at the end of the stream."""
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
        """Every message until the other end is gone."""
        with contextlib.suppress(Closed):
            while True:
                yield from self.receive()

    def close(self) -> None:
        self.connection.close()

    def _complete(self) -> Iterator[Message]:
        while len(self._bytes) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._bytes)
            end = _LENGTH.size + length
            if len(self._bytes) < end:
                return
            message: Message = json.loads(self._bytes[_LENGTH.size : end])
            del self._bytes[:end]
            count = message.get("descriptors", 0)
            if count:
                message["descriptors"], self._descriptors = self._descriptors[:count], self._descriptors[count:]
            yield message


def _closed(error: OSError) -> Exception:
    """Closed where that is what the error says, else the error itself."""
    return Closed() if error.errno in _GONE else error
