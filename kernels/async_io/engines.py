"""Engines that move bytes between an open file and memory.

One is compiled and queues its requests; the other uses Python's own calls.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
from pathlib import Path
from typing import Protocol

from conformance.kernels.async_io.settings import HandleSettings
from conformance.kernels.native import shared_object

_SOURCE = Path(__file__).parent / "csrc" / "async_io.cpp"


class Engine(Protocol):
    """Mover of bytes between a file and memory; used by one thread at a time."""

    def move(self, writes: bool, direct: int, plain: int, address: int, bytes_: int, offset: int) -> int:
        """Move ``bytes_`` bytes between ``address`` and the file, starting at ``offset``; return how many were moved.

        ``plain`` is the descriptor of the open file. ``direct`` is the same file opened to bypass the page cache, or
        -1. Fewer bytes are moved only at the end of the file. Raises OSError. The interpreter lock is released.
        """

    def close(self) -> None:
        """Release the engine's resources; it must not be used afterwards."""


class NativeEngine:
    """Compiled engine. ``queues=False`` moves one request at a time, as where asynchronous I/O is forbidden."""

    def __init__(self, settings: HandleSettings, queues: bool = True) -> None:
        self._library = library()
        self._engine: int | None = self._library.engine_new(
            settings.block_size, settings.queue_depth, settings.single_submit, settings.overlap_events, queues
        )
        if self._engine is None:
            raise MemoryError(f"no memory for a queue of {settings.queue_depth} requests")

    @property
    def why_not_queued(self) -> int:
        """Return 0 if the operating system queues the requests, otherwise its error number for the refused queue."""
        return int(self._library.engine_why_not(self._engine))

    def move(self, writes: bool, direct: int, plain: int, address: int, bytes_: int, offset: int) -> int:
        """Move bytes as ``Engine.move`` says, with up to ``queue_depth`` requests in flight."""
        moved = int(self._library.engine_move(self._engine, writes, direct, plain, address, bytes_, offset))
        if moved < 0:
            raise OSError(-moved, os.strerror(-moved))
        return moved

    def close(self) -> None:
        """Free the queue and the staging buffers. A second call does nothing."""
        engine, self._engine = self._engine, None
        if engine is not None:
            self._library.engine_delete(engine)


class PortableEngine:
    """Engine of Python's ``preadv`` and ``pwritev``: one block a call, through the page cache."""

    def __init__(self, settings: HandleSettings) -> None:
        self._block = settings.block_size

    def move(self, writes: bool, direct: int, plain: int, address: int, bytes_: int, offset: int) -> int:
        """Move bytes as ``Engine.move`` says, one request after the other; ``direct`` is not used."""
        call = os.pwritev if writes else os.preadv
        memory = memoryview((ctypes.c_char * bytes_).from_address(address))
        done = 0
        while done < bytes_:
            moved = call(plain, [memory[done : done + self._block]], offset + done)
            if moved == 0:  # the end of the file
                break
            done += moved
        return done

    def close(self) -> None:
        """Do nothing: this engine holds no resources."""


def describe() -> str:
    """Return one sentence on how the compiled engine moves bytes here. Raises SetupError without a compiler."""
    engine = NativeEngine(HandleSettings(queue_depth=1))
    refused = engine.why_not_queued
    engine.close()
    if refused == 0:
        return "compiled, with the kernel's asynchronous I/O (io_submit)"
    name = errno.errorcode.get(refused, str(refused))
    return f"compiled, one request at a time for each thread: the operating system refuses asynchronous I/O ({name})"


@functools.cache
def library() -> ctypes.CDLL:
    """Return the loaded library of the compiled engine. Raises SetupError without a compiler."""
    loaded = shared_object(_SOURCE, "the compiled part of asynchronous I/O", "preadv in threads does the work without")
    number, pointer = ctypes.c_int64, ctypes.c_void_p
    flag = ctypes.c_int
    loaded.engine_new.argtypes, loaded.engine_new.restype = [number, number, flag, flag, flag], pointer
    loaded.engine_why_not.argtypes, loaded.engine_why_not.restype = [pointer], flag
    loaded.engine_move.argtypes = [pointer, flag, flag, flag, pointer, number, number]
    loaded.engine_move.restype = number
    loaded.engine_delete.argtypes, loaded.engine_delete.restype = [pointer], None
    return loaded
