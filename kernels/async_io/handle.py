"""Asynchronous I/O handle (DeepSpeed's ``aio_handle``): reads and writes tensors, now or in the background.

It differs from DeepSpeed's where that one returns success or -1 without having done the work:

- The bytes of a device tensor arrive before ``wait`` returns, on every type of device.
- Sizes and offsets need not be multiples of a block.
- An impossible request is an error that names the argument.
"""

from __future__ import annotations

import os
import queue
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

from torch import Tensor

from conformance.base.errors import UsageError
from conformance.kernels.async_io.engines import Engine, NativeEngine, PortableEngine, library
from conformance.kernels.async_io.operation import Engines, Operation, prepare
from conformance.kernels.async_io.settings import HandleSettings
from conformance.kernels.pinned_memory import PinHandle


class Handle(PinHandle):
    """Queue of transfers, served by ``intra_op_parallelism`` threads.

    Transfers in the background run in no order: call ``wait`` before reading a file that was written. Do not touch
    their tensors until ``wait``; only a device tensor may be changed as soon as its write has started. A handle belongs
    to the process that made it, and several threads of it may use the handle.
    """

    _engine: ClassVar[type[NativeEngine] | type[PortableEngine]]

    def __init__(
        self,
        block_size: int = 1 << 20,
        queue_depth: int = 128,
        single_submit: bool = False,
        overlap_events: bool = False,
        intra_op_parallelism: int = 1,
    ) -> None:
        """Make a handle with ``block_size`` bytes a request and ``queue_depth`` requests in flight for each thread.

        With ``single_submit`` each request has a system call of its own. With ``overlap_events`` the queue is refilled
        as requests end, otherwise when all have ended. Neither changes the bytes. Raises UsageError.
        """
        # These two come first: __del__ needs them, also when the next lines raise.
        self._pending: list[Operation] = []
        self._open = False
        self._settings = HandleSettings(block_size, queue_depth, single_submit, overlap_events, intra_op_parallelism)
        self._process, self._lock = os.getpid(), threading.Lock()
        self._engines: Engines = queue.SimpleQueue()
        self._made: list[Engine] = [self._engine(self._settings) for _ in range(intra_op_parallelism)]
        for engine in self._made:
            self._engines.put(engine)
        self._workers = ThreadPoolExecutor(intra_op_parallelism, thread_name_prefix="async-io")
        self._open = True

    def get_block_size(self) -> int:
        """Return the bytes of a request."""
        return self._settings.block_size

    def get_queue_depth(self) -> int:
        """Return the number of requests in flight for each thread."""
        return self._settings.queue_depth

    def get_single_submit(self) -> bool:
        """Return True if each request has a system call of its own."""
        return self._settings.single_submit

    def get_overlap_events(self) -> bool:
        """Return True if the queue is refilled as requests end."""
        return self._settings.overlap_events

    def get_intra_op_parallelism(self) -> int:
        """Return the number of threads."""
        return self._settings.intra_op_parallelism

    def get_alignment(self) -> int:
        """Return the bytes whose multiples are shared out evenly over the threads; other sizes work as well."""
        return 512 * self._settings.intra_op_parallelism

    def read(self, buffer: Tensor, filename: Any, validate: bool = False, file_offset: int = 0) -> int:
        """Fill ``buffer`` from the file and return 0. ``validate`` reads the file again by other means and compares."""
        self._now(False, buffer, filename, validate, file_offset)
        return 0

    def write(self, buffer: Tensor, filename: Any, validate: bool = False, file_offset: int = 0) -> int:
        """Write ``buffer`` into the file and return 0. The file keeps its other bytes."""
        self._now(True, buffer, filename, validate, file_offset)
        return 0

    def pread(self, buffer: Tensor, filename: Any, validate: bool, asynchronous: bool, file_offset: int = 0) -> int:
        """Start to read in the background and return 0, or read now and return 1 (completed operation)."""
        return (self._later if asynchronous else self._now)(False, buffer, filename, validate, file_offset)

    def pwrite(self, buffer: Tensor, filename: Any, validate: bool, asynchronous: bool, file_offset: int = 0) -> int:
        """Start to write in the background and return 0, or write now and return 1 (completed operation)."""
        return (self._later if asynchronous else self._now)(True, buffer, filename, validate, file_offset)

    def sync_pread(self, buffer: Tensor, filename: Any, file_offset: int = 0) -> int:
        """Read now and return 1, the number of completed operations. Those in the background stay pending."""
        return self._now(False, buffer, filename, False, file_offset)

    def sync_pwrite(self, buffer: Tensor, filename: Any, file_offset: int = 0) -> int:
        """Write now and return 1, the number of completed operations. Those in the background stay pending."""
        return self._now(True, buffer, filename, False, file_offset)

    def async_pread(self, buffer: Tensor, filename: Any, file_offset: int = 0) -> int:
        """Start to read and return 0. The buffer has its values after ``wait``."""
        return self._later(False, buffer, filename, False, file_offset)

    def async_pwrite(self, buffer: Tensor, filename: Any, file_offset: int = 0) -> int:
        """Start to write and return 0. The file has the values after ``wait``."""
        return self._later(True, buffer, filename, False, file_offset)

    def wait(self) -> int:
        """Wait for all pending operations, and return how many there were.

        Raises OSError if one of them failed, after all have ended. Raises UsageError if nothing is pending.
        """
        self._check_usable()
        if not self._pending:
            raise UsageError("wait: nothing is pending on this handle.\n  start an operation with async_pread first")
        return self._wait()

    def close(self) -> None:
        """Wait for pending operations, then release threads and queues. A closed handle refuses every call."""
        self._close(joins=True)

    def _close(self, *, joins: bool) -> None:
        # A forked child has none of the threads, so it cannot wait for them; the parent's handle is not touched.
        if not self._open or os.getpid() != self._process:
            return
        self._open = False
        try:
            if self._pending:
                self._wait()
        finally:
            self._workers.shutdown(wait=joins)
            for engine in self._made:
                engine.close()

    def __del__(self) -> None:
        forgotten = len(self._pending)
        # Garbage may be collected in a thread that starts and holds the lock which the end of a thread asks for. No
        # operation runs any more, so the threads end by themselves.
        self._close(joins=False)
        # A child of fork() has a copy of the list, and nothing in it is the child's to wait for.
        if forgotten and os.getpid() == self._process:
            text = f"a handle was deleted with {forgotten} operations pending; they were completed first. Call wait()"
            warnings.warn(text, ResourceWarning, stacklevel=2)

    def _now(self, writes: bool, buffer: Tensor, filename: Any, validate: bool, offset: int) -> int:
        """Transfer all bytes before returning 1. Raises the first error of a part."""
        operation, parts = self._begin(writes, buffer, filename, validate, offset)
        if len(parts) == 1:  # in this thread, which saves the way to a worker thread and back
            operation.run(self._engines, *parts[0])
        else:
            self._share_out(operation, parts)
        failed = operation.outcome()
        if failed is not None:
            raise failed
        return 1

    def _later(self, writes: bool, buffer: Tensor, filename: Any, validate: bool, offset: int) -> int:
        """Queue the transfer and return 0. Its errors are raised by ``wait``."""
        operation, parts = self._begin(writes, buffer, filename, validate, offset)
        self._share_out(operation, parts)
        with self._lock:
            self._pending.append(operation)
        return 0

    def _begin(
        self, writes: bool, buffer: Tensor, filename: Any, validate: bool, offset: int
    ) -> tuple[Operation, list[tuple[int, int]]]:
        """Check the call, open the file, and return the operation with its parts as (start, stop) in bytes."""
        self._check_usable()
        transfer, opened = prepare(writes, buffer, filename, offset, validate)
        parts = transfer.parts(self._settings.intra_op_parallelism)
        return Operation(transfer, opened, parts), parts

    def _share_out(self, operation: Operation, parts: list[tuple[int, int]]) -> None:
        operation.futures = [self._workers.submit(operation.run, self._engines, *part) for part in parts]

    def _wait(self) -> int:
        """Wait for all queued transfers and return their number. Raises their error, or a summary of several."""
        with self._lock:
            # Taken under the lock, so that two threads never wait for the same operation.
            pending, self._pending = self._pending, []
        failed = [error for operation in pending if (error := operation.outcome()) is not None]
        if len(pending) == len(failed) == 1:
            raise failed[0]
        if failed:
            code = getattr(failed[0], "errno", None)
            raise OSError(code, f"{len(failed)} of {len(pending)} operations failed; the first: {failed[0]}")
        return len(pending)

    def _check_usable(self) -> None:
        """Raise ``UsageError`` if the handle is closed or was inherited through a fork."""
        if not self._open:
            raise UsageError("this handle is closed.\n  make a new one")
        if os.getpid() != self._process:
            raise UsageError(
                f"this handle belongs to process {self._process}, and this is {os.getpid()}.\n"
                "  its threads do not survive a fork: make a handle in each process"
            )


class NativeHandle(Handle):
    """Handle of the compiled engine.

    It bypasses the page cache where the file system can, and queues requests where the operating system allows it.
    """

    _engine = NativeEngine


class PortableHandle(Handle):
    """Reference handle: Python's own calls in threads."""

    _engine = PortableEngine


def native_handle() -> type[NativeHandle]:
    """Build the compiled engine and return its handle class. Raises SetupError without a compiler."""
    library()
    return NativeHandle
