"""Transfer between a tensor and a file, in parts that worker threads share."""

from __future__ import annotations

import errno
import itertools
import os
import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from conformance.kernels.arguments import wrong
from conformance.kernels.async_io.engines import Engine
from conformance.kernels.async_io.files import FileName, OpenFile, open_to_read, open_to_write
from conformance.kernels.async_io.settings import BLOCK, check_buffer, check_filename, check_offset, host_bytes

Engines = queue.SimpleQueue[Engine]


@dataclass(frozen=True)
class Transfer:
    """Description of a transfer. ``memory`` is uint8 on the host: the buffer's own bytes, or a device tensor's copy."""

    writes: bool
    buffer: Tensor
    memory: Tensor
    filename: FileName
    offset: int
    validate: bool

    @property
    def sentence(self) -> str:
        """Return the transfer as the subject of an error's sentence."""
        direction = "writing {} bytes to" if self.writes else "reading {} bytes of"
        return f"{direction.format(self.memory.numel())} {self.filename!r} from {self.offset} on"

    def parts(self, number: int) -> list[tuple[int, int]]:
        """Return (start, stop) of at most ``number`` parts of the range, cut where blocks of the file begin."""
        total = self.memory.numel()
        cuts = {min(total, _round_up(self.offset + total * i // number) - self.offset) for i in range(1, number)}
        edges = sorted({0, total, *cuts})
        return list(itertools.pairwise(edges))

    def deliver(self) -> None:
        """Compare the file if ``validate`` is set, and copy bytes that were read to a device tensor."""
        if self.validate:
            self._compare()
        if not self.writes and self.buffer.device.type != "cpu":
            self.buffer.copy_(self.memory.view(self.buffer.dtype).view(self.buffer.shape))

    def _compare(self) -> None:
        """Read the written bytes back and compare them. Raises ``OSError`` at the first difference."""
        opened = open_to_read(self.filename, self.memory.numel(), self.offset)
        try:
            # In pieces of 1 MiB, so that the comparison needs little memory.
            for start in range(0, self.memory.numel(), 1 << 20):
                expected = self.memory[start : start + (1 << 20)].numpy().tobytes()
                if os.pread(opened.plain, len(expected), self.offset + start) != expected:
                    raise OSError(errno.EIO, f"{self.sentence} left other bytes within {start}…{start + len(expected)}")
        finally:
            opened.close()


def prepare(writes: bool, buffer: Any, filename: Any, offset: Any, validate: Any) -> tuple[Transfer, OpenFile]:
    """Check all arguments, then open the file. If it raises UsageError, nothing has been touched."""
    buffer, offset, filename = check_buffer(buffer), check_offset(offset), check_filename(filename)
    if not isinstance(validate, (bool, int)):
        raise wrong("validate", "True or False", repr(validate))
    transfer = Transfer(writes, buffer, _on_the_host(buffer, writes), filename, offset, bool(validate))
    opened = open_to_write(filename) if writes else open_to_read(filename, buffer.nbytes, offset)
    return transfer, opened


class Operation:
    """Transfer in progress. Its file is closed when the last part has ended, even if no thread waits for it."""

    def __init__(self, transfer: Transfer, opened: OpenFile, parts: Sequence[tuple[int, int]]) -> None:
        self.transfer, self._opened, self._left = transfer, opened, len(parts)
        self._lock = threading.Lock()
        self.futures: list[Future[None]] = []
        if not parts:
            opened.close()

    def run(self, engines: Engines, start: int, stop: int) -> None:
        """Move the part from ``start`` to ``stop`` with the next free engine. Raises OSError."""
        try:
            engine = engines.get()
            try:
                self._move(engine, start, stop)
            finally:
                engines.put(engine)
        finally:
            self._end_part()

    def outcome(self) -> Exception | None:
        """Wait for all parts and deliver; return the first error, for the caller to raise, or None."""
        errors = [error for future in self.futures if (error := future.exception()) is not None]
        try:
            if errors:
                raise errors[0]
            self.transfer.deliver()
        except Exception as error:  # noqa: BLE001 - other operations have to end before it is raised
            return error
        return None

    def _move(self, engine: Engine, start: int, stop: int) -> None:
        """Move the bytes from ``start`` to ``stop``. Raises ``OSError`` if the file is too short."""
        transfer, opened = self.transfer, self._opened
        address, offset = transfer.memory.data_ptr() + start, transfer.offset + start
        try:
            moved = engine.move(transfer.writes, opened.direct, opened.plain, address, stop - start, offset)
        except OSError as error:
            raise OSError(error.errno, f"{transfer.sentence}: {error.strerror}") from None
        if moved != stop - start:
            raise OSError(errno.ENODATA, f"{transfer.sentence}: the file ends after {start + moved} of them")

    def _end_part(self) -> None:
        """Count a part as ended, and close the file after the last."""
        with self._lock:
            self._left -= 1
            last = self._left == 0
        if last:
            self._opened.close()


def _on_the_host(buffer: Tensor, writes: bool) -> Tensor:
    """Return the buffer's bytes in host memory: its own, or a copy that is filled only for writes."""
    if buffer.device.type == "cpu":
        return host_bytes(buffer)
    # The copy starts at a multiple of BLOCK in memory, so that direct I/O needs no staging buffer.
    space = torch.empty(buffer.nbytes + BLOCK, dtype=torch.uint8)
    first = -space.data_ptr() % BLOCK
    memory = space[first : first + buffer.nbytes]
    if writes:
        memory.view(buffer.dtype).view(buffer.shape).copy_(buffer)
    return memory


def _round_up(offset: int) -> int:
    """Return the beginning of the next block, or ``offset`` if a block begins there."""
    return -(-offset // BLOCK) * BLOCK
