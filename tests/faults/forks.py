"""Work in forked copies of this process, a few at a time. What breaks in a copy stays there.

The parent loads everything and touches no device: after a fork there is no second backward, and no second device.
"""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, TypeVar

import torch

from conformance.suites.operators.calls import database

T = TypeVar("T")
_CONTEXT = multiprocessing.get_context("fork")
#: What copies import when they first need it; each would take seconds for it.
_IMPORTED_LATE = (
    "torch._dynamo",
    "torch._inductor.compile_fx",
    "torch._inductor.codegen.cpp",
    "torch.distributed",
    "torch.profiler",
    "torch.utils.flop_counter",
)

#: Sends one message to the parent.
Send = Callable[[Any], None]


@dataclass
class Copy(Generic[T]):
    """One copy: its task, its messages, and the status with which it ended."""

    task: T
    messages: list[Any] = field(default_factory=list)
    status: int | None = None
    error: str = ""


def prepare() -> None:
    """Load what copies share, and keep it out of their garbage collections."""
    for name in _IMPORTED_LATE:
        importlib.import_module(name)
    database.database()
    gc.collect()
    gc.freeze()


def run(tasks: Iterable[T], work: Callable[[T, Send], None], processes: int) -> Iterator[Copy[T]]:
    """Run ``work(task, send)`` in a copy for each task; yield each copy as it ends."""
    waiting, running = iter(tasks), {}
    exhausted = False
    while True:
        while not exhausted and len(running) < processes:
            task = next(waiting, _NOTHING)
            exhausted = task is _NOTHING
            if not exhausted:
                connection, process = _start(task, work)
                running[connection] = (Copy(task), process)
        if not running:
            return
        for connection in wait(list(running)):
            copy, process = running[connection]
            if not _hear(copy, connection):
                process.join()
                copy.status = process.exitcode
                connection.close()
                del running[connection]
                yield copy


_NOTHING: Any = object()


def limit(seconds: float, patience: float = 10) -> None:
    """End this copy after so many seconds of its own work, or after ``patience`` times as long; 0 lifts the limit.

    Work is counted in processor time: a busy machine must not make a fault look like a hang, which does no work.
    """
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, seconds * patience)


def _start(task: Any, work: Callable[[Any, Send], None]) -> tuple[Connection, Any]:
    ours, theirs = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(target=_work, args=(task, work, theirs), daemon=False)
    process.start()
    theirs.close()
    return ours, process


def _hear(copy: Copy[Any], connection: Connection) -> bool:
    """Take one message; False when the copy has ended."""
    try:
        message = connection.recv()
    except (EOFError, ConnectionError):
        return False
    if isinstance(message, _Broken):
        copy.error = message.text
    else:
        copy.messages.append(message)
    return True


@dataclass(frozen=True)
class _Broken:
    """The traceback of work that raised."""

    text: str


def settle() -> None:
    """Prepare this copy: no output, and one thread.

    A copy of a process that has used its threads has none of them, and would wait for them for ever.
    """
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    torch.set_num_threads(1)


def _work(task: Any, work: Callable[[Any, Send], None], connection: Connection) -> None:
    for number in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(number, signal.SIG_DFL)
    settle()
    try:
        work(task, connection.send)
    except BaseException:
        connection.send(_Broken(traceback.format_exc()))
    # Nothing is torn down: what a fault broke may not survive it.
    os._exit(0)
