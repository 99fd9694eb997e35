"""``aio_handle``: reads and writes tensors, now or in the background.

Differs from DeepSpeed's where that one answers success or -1 without having done the work: a device tensor's bytes
arrive before ``wait`` returns, whatever the device; sizes and offsets need not be multiples of anything; what cannot be
done is an error that names the argument.
"""

from __future__ import annotations

import os
import queue
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

from torch import Tensor

from conformance.errors import UsageError
from conformance.kernels.async_io.engines import Engine, NativeEngine, PortableEngine, library
from conformance.kernels.async_io.operation import Engines, Operation, prepare
from conformance.kernels.async_io.settings import Settings
from conformance.kernels.pinned_memory import PinHandle


class Handle(PinHandle):
    """One queue of transfers, served by ``intra_op_parallelism`` threads.

    Transfers in the background are in no order: wait before reading what was written. Their tensors must be left alone
    until ``wait``; a device tensor may be changed as soon as a write was started. A handle belongs to the process that
    made it, and may be used by several of its threads.
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
        """``block_size`` bytes a request, ``queue_depth`` requests in flight for each thread.

        With ``single_submit`` each request has a system call of its own; with ``overlap_events`` the queue is refilled
        as requests end, otherwise when all have ended. Neither changes what is read or written. Raises UsageError.
        """
        self._pending: list[Operation] = []
        self._open = False
        self._settings = Settings(block_size, queue_depth, single_submit, overlap_events, intra_op_parallelism)
        self._process, self._lock = os.getpid(), threading.Lock()
        self._engines: Engines = queue.SimpleQueue()
        self._made: list[Engine] = [self._engine(self._settings) for _ in range(intra_op_parallelism)]
        for engine in self._made:
            self._engines.put(engine)
        self._workers = ThreadPoolExecutor(intra_op_parallelism, thread_name_prefix="async-io")
        self._open = True

    def get_block_size(self) -> int:
        return self._settings.block_size

    def get_queue_depth(self) -> int:
        return self._settings.queue_depth

    def get_single_submit(self) -> bool:
        return self._settings.single_submit

    def get_overlap_events(self) -> bool:
        return self._settings.overlap_events

    def get_intra_op_parallelism(self) -> int:
        return self._settings.intra_op_parallelism

    def get_alignment(self) -> int:
        """What sizes are multiples of where a file is shared out evenly, in bytes; others work as well."""
        return 512 * self._settings.intra_op_parallelism

    def read(self, buffer: Tensor, filename: Any, validate: bool = False, file_offset: int = 0) -> int:
        """Fill ``buffer`` from the file; 0. With ``validate`` the file is read again by other means and compared."""
        self._now(False, buffer, filename, validate, file_offset)
        return 0

    def write(self, buffer: Tensor, filename: Any, validate: bool = False, file_offset: int = 0) -> int:
        """Write ``buffer`` into the file; 0. What the file has beyond it stays."""
        self._now(True, buffer, filename, validate, file_offset)
        return 0

    def pread(self, buffer: Tensor, filename: Any, validate: bool, asynchronous: bool, file_offset: int = 0) -> int:
        """Read in the background (0) or now (the number of completed operations, 1)."""
        return (self._later if asynchronous else self._now)(False, buffer, filename, validate, file_offset)

    def pwrite(self, buffer: Tensor, filename: Any, validate: bool, asynchronous: bool, file_offset: int = 0) -> int:
        """Write in the background (0) or now (the number of completed operations, 1)."""
        return (self._later if asynchronous else self._now)(True, buffer, filename, validate, file_offset)

    def sync_pread(self, buffer: Tensor, filename: Any, file_offset: int = 0) -> int:
        """Read now: 1, the completed operation. Operations in the background stay pending."""
        return self._now(False, buffer, filename, False, file_offset)

    def sync_pwrite(self, buffer: Tensor, filename: Any, file_offset: int = 0) -> int:
        """Write now: 1, the completed operation. Operations in the background stay pending."""
        return self._now(True, buffer, filename, False, file_offset)

    def async_pread(self, buffer: Tensor, filename: Any, file_offset: int = 0) -> int:
        """Start to read: 0. The buffer has its values after ``wait``."""
        return self._later(False, buffer, filename, False, file_offset)

    def async_pwrite(self, buffer: Tensor, filename: Any, file_offset: int = 0) -> int:
        """Start to write: 0. The file has the values after ``wait``."""
        return self._later(True, buffer, filename, False, file_offset)

    def wait(self) -> int:
        """The number of operations that have completed since the last call, all of them.

        Raises OSError if one failed, after all have ended, and UsageError if nothing is pending.
        """
        self._check_usable()
        if not self._pending:
            raise UsageError("wait: nothing is pending on this handle.\n  start an operation with async_pread first")
        return self._wait()

    def close(self) -> None:
        """Wait for what is pending, and release threads and queues; a closed handle refuses everything."""
        if not self._open or os.getpid() != self._process:
            return
        self._open = False
        try:
            if self._pending:
                self._wait()
        finally:
            self._workers.shutdown()
            for engine in self._made:
                engine.close()

    def __del__(self) -> None:
        forgotten = len(self._pending)
        self.close()
        if forgotten and os.getpid() == self._process:
            text = f"a handle went away with {forgotten} operations pending, which were waited for; call wait()"
            warnings.warn(text, ResourceWarning, stacklevel=2)

    def _now(self, writes: bool, buffer: Tensor, filename: Any, validate: bool, offset: int) -> int:
        operation, parts = self._begin(writes, buffer, filename, validate, offset)
        if len(parts) == 1:
            operation.run(self._engines, *parts[0])
        else:
            self._share_out(operation, parts)
        failed = operation.outcome()
        if failed is not None:
            raise failed
        return 1

    def _later(self, writes: bool, buffer: Tensor, filename: Any, validate: bool, offset: int) -> int:
        operation, parts = self._begin(writes, buffer, filename, validate, offset)
        self._share_out(operation, parts)
        with self._lock:
            self._pending.append(operation)
        return 0

    def _begin(
        self, writes: bool, buffer: Tensor, filename: Any, validate: bool, offset: int
    ) -> tuple[Operation, list[tuple[int, int]]]:
        self._check_usable()
        transfer, opened = prepare(writes, buffer, filename, offset, validate)
        parts = transfer.parts(self._settings.intra_op_parallelism)
        return Operation(transfer, opened, parts), parts

    def _share_out(self, operation: Operation, parts: list[tuple[int, int]]) -> None:
        operation.futures = [self._workers.submit(operation.run, self._engines, *part) for part in parts]

    def _wait(self) -> int:
        with self._lock:
            pending, self._pending = self._pending, []
        failed = [error for operation in pending if (error := operation.outcome()) is not None]
        if len(pending) == len(failed) == 1:
            raise failed[0]
        if failed:
            code = getattr(failed[0], "errno", None)
            raise OSError(code, f"{len(failed)} of {len(pending)} operations failed; the first: {failed[0]}")
        return len(pending)

    def _check_usable(self) -> None:
        if not self._open:
            raise UsageError("this handle is closed; make another one")
        if os.getpid() != self._process:
            raise UsageError(
                f"this handle belongs to process {self._process}, and this is {os.getpid()}.\n"
                "  its threads do not survive a fork: make a handle in each process"
            )


class NativeHandle(Handle):
    """The compiled one: past the page cache where the file system can, with the kernel's queue where it may."""

    _engine = NativeEngine


class PortableHandle(Handle):
    """The reference: Python's own calls in threads."""

    _engine = PortableEngine


def native_handle() -> type[NativeHandle]:
    """The compiled one, built. Raises SetupError without a compiler."""
    library()
    return NativeHandle
