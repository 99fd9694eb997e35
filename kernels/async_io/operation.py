"""One transfer between a tensor and a file, in parts that workers share."""

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
from conformance.kernels.async_io.files import Name, OpenFile, open_to_read, open_to_write
from conformance.kernels.async_io.settings import BLOCK, check_buffer, check_filename, check_offset, host_bytes

Engines = queue.SimpleQueue[Engine]


@dataclass(frozen=True)
class Transfer:
    """What goes where. ``memory`` is bytes on the host: the buffer's own, or those of a copy for a device tensor."""

    writes: bool
    buffer: Tensor
    memory: Tensor
    filename: Name
    offset: int
    validate: bool

    @property
    def sentence(self) -> str:
        direction = "writing {} bytes to" if self.writes else "reading {} bytes of"
        return f"{direction.format(self.memory.numel())} {self.filename!r} from {self.offset} on"

    def parts(self, number: int) -> list[tuple[int, int]]:
        """The range cut into at most ``number`` parts where blocks of the file begin."""
        total = self.memory.numel()
        cuts = {min(total, _up(self.offset + total * i // number, BLOCK) - self.offset) for i in range(1, number)}
        edges = sorted({0, total, *cuts})
        return list(itertools.pairwise(edges))

    def deliver(self) -> None:
        """What was read arrives in the buffer; what was asked to be checked is checked."""
        if self.validate:
            self._compare()
        if not self.writes and self.buffer.device.type != "cpu":
            self.buffer.copy_(self.memory.view(self.buffer.dtype).view(self.buffer.shape))

    def _compare(self) -> None:
        opened = open_to_read(self.filename, self.memory.numel(), self.offset)
        try:
            for start in range(0, self.memory.numel(), 1 << 20):
                expected = self.memory[start : start + (1 << 20)].numpy().tobytes()
                if os.pread(opened.plain, len(expected), self.offset + start) != expected:
                    raise OSError(errno.EIO, f"{self.sentence} left other bytes within {start}…{start + len(expected)}")
        finally:
            opened.close()


def prepare(writes: bool, buffer: Any, filename: Any, offset: Any, validate: Any) -> tuple[Transfer, OpenFile]:
    """Check everything, then open the file. Raises UsageError, and then nothing has been touched."""
    buffer, offset, filename = check_buffer(buffer), check_offset(offset), check_filename(filename)
    if not isinstance(validate, (bool, int)):
        raise wrong("validate", "True or False", repr(validate))
    transfer = Transfer(writes, buffer, _on_the_host(buffer, writes), filename, offset, bool(validate))
    opened = open_to_write(filename) if writes else open_to_read(filename, buffer.nbytes, offset)
    return transfer, opened


class Operation:
    """A transfer under way. Its file is closed when the last part has ended, whoever waits for it."""

    def __init__(self, transfer: Transfer, opened: OpenFile, parts: Sequence[tuple[int, int]]) -> None:
        self.transfer, self._opened, self._left = transfer, opened, len(parts)
        self._lock = threading.Lock()
        self.futures: list[Future[None]] = []
        if not parts:
            opened.close()

    def run(self, engines: Engines, start: int, stop: int) -> None:
        """Move one part with the next engine that is free. Raises OSError."""
        try:
            engine = engines.get()
            try:
                self._move(engine, start, stop)
            finally:
                engines.put(engine)
        finally:
            self._end_part()

    def outcome(self) -> Exception | None:
        """Wait for all parts and deliver; what went wrong first, for the caller to raise."""
        errors = [error for future in self.futures if (error := future.exception()) is not None]
        try:
            if errors:
                raise errors[0]
            self.transfer.deliver()
        except Exception as error:  # noqa: BLE001 - other operations have to end before it is raised
            return error
        return None

    def _move(self, engine: Engine, start: int, stop: int) -> None:
        asked, opened = self.transfer, self._opened
        address = asked.memory.data_ptr() + start
        try:
            moved = engine.move(asked.writes, opened.direct, opened.plain, address, stop - start, asked.offset + start)
        except OSError as error:
            raise OSError(error.errno, f"{asked.sentence}: {error.strerror}") from None
        if moved != stop - start:
            raise OSError(errno.ENODATA, f"{asked.sentence}: the file ends after {start + moved} of them")

    def _end_part(self) -> None:
        with self._lock:
            self._left -= 1
            last = self._left == 0
        if last:
            self._opened.close()


def _on_the_host(buffer: Tensor, writes: bool) -> Tensor:
    if buffer.device.type == "cpu":
        return host_bytes(buffer)
    # It starts at a block, so that the storage reaches it without one more copy.
    space = torch.empty(buffer.nbytes + BLOCK, dtype=torch.uint8)
    first = -space.data_ptr() % BLOCK
    memory = space[first : first + buffer.nbytes]
    if writes:
        memory.view(buffer.dtype).view(buffer.shape).copy_(buffer)
    return memory


def _up(number: int, unit: int) -> int:
    return -(-number // unit) * unit
