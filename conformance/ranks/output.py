"""What a rank prints: its head and its tail are kept, whatever lies between is counted."""

from __future__ import annotations

import os
from collections import deque

_KEPT_AT_EACH_END = 16 * 1024
_CHUNK = 1 << 16


class Output:
    """The pool's end of a rank's stdout and stderr. It is read while the case runs, so that nobody blocks on it."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self.clear()

    def fileno(self) -> int:
        return self._descriptor

    @property
    def size(self) -> int:
        """How many bytes there were since it was cleared."""
        return self._total

    def clear(self) -> None:
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._in_tail = self._total = self._lines = 0

    def read(self) -> bool:
        """Take one chunk of what is there; False at the end of the stream."""
        try:
            data = os.read(self._descriptor, _CHUNK)
        except BlockingIOError:
            return True
        self._take(data)
        return bool(data)

    def drain(self) -> None:
        """Take everything that is there."""
        total = -1
        while total != self._total:
            total = self._total
            self.read()

    def _take(self, data: bytes) -> None:
        self._total += len(data)
        self._lines += data.count(b"\n")
        room = _KEPT_AT_EACH_END - len(self._head)
        self._head += data[:room]
        rest = data[room:] if room > 0 else data
        if rest:
            self._tail.append(rest)
            self._in_tail += len(rest)
        while self._tail and self._in_tail - len(self._tail[0]) >= _KEPT_AT_EACH_END:
            self._in_tail -= len(self._tail.popleft())

    def text(self) -> str:
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
        os.close(self._descriptor)


def tagged(rank: int, text: str) -> str:
    """Every line with the rank that wrote it."""
    return "\n".join(f"[rank {rank}] {line}" for line in text.splitlines())
