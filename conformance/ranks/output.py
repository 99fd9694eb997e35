"""Output of a rank: the first and the last part are kept, the lines between them are counted."""

from __future__ import annotations

import os
from collections import deque

_KEPT_AT_EACH_END = 16 * 1024
_CHUNK = 1 << 16


class Output:
    """The pool's end of a rank's stdout and stderr. The pool reads it while the case runs, so that no rank blocks."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self.clear()

    def fileno(self) -> int:
        """Return the descriptor, so that a selector can wait for output."""
        return self._descriptor

    @property
    def size(self) -> int:
        """Number of bytes since the output was cleared."""
        return self._total

    def clear(self) -> None:
        """Forget everything that was read."""
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._in_tail = self._total = self._lines = 0

    def read(self) -> bool:
        """Read one chunk without waiting. Return False at the end of the stream."""
        try:
            data = os.read(self._descriptor, _CHUNK)
        except BlockingIOError:
            return True
        self._take(data)
        return bool(data)

    def drain(self) -> None:
        """Read everything that has arrived."""
        total = -1
        while total != self._total:
            total = self._total
            self.read()

    def _take(self, data: bytes) -> None:
        """Keep the data that belongs to the head or the tail, and count the rest."""
        self._total += len(data)
        self._lines += data.count(b"\n")
        room = _KEPT_AT_EACH_END - len(self._head)
        self._head += data[:room]
        rest = data[room:] if room > 0 else data
        if rest:
            self._tail.append(rest)
            self._in_tail += len(rest)
        # A whole chunk goes only while the tail stays long enough without it, so the tail may be one chunk too long.
        while self._tail and self._in_tail - len(self._tail[0]) >= _KEPT_AT_EACH_END:
            self._in_tail -= len(self._tail.popleft())

    def text(self) -> str:
        """Return the first and the last part, with a note on what lies between them."""
        tail = b"".join(self._tail)
        hidden = self._total - len(self._head) - len(tail[-_KEPT_AT_EACH_END:])
        parts = [bytes(self._head)]
        if hidden > 0:
            # Whole lines on both sides of the gap.
            parts[0] = parts[0].rpartition(b"\n")[0]
            parts.append(f"\n… of {self._lines} lines, {self._total} bytes, the middle is left out …\n".encode())
            tail = tail[-_KEPT_AT_EACH_END:].partition(b"\n")[2]
        return b"".join([*parts, tail]).decode(errors="replace")

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._descriptor)


def tagged(rank: int, text: str) -> str:
    """Return the text with the rank in front of every line."""
    return "\n".join(f"[rank {rank}] {line}" for line in text.splitlines())
