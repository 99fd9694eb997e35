"""The zygote: a clean interpreter that has imported what ranks need, forks them, and reaps them.

It never touches an accelerator and has one thread, so a fork of it is as good as a fresh interpreter and takes
milliseconds. It lives as long as the pytest process holds the other end of its channel; what ranks leave behind is
adopted by it (a "child subreaper") and ended with them. Its parent is the guard, which does that for the zygote.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
from typing import NoReturn

from conformance.process.children import LAST_WORDS, children, end_children
from conformance.process.lifetime import adopt_orphans, die_with_parent
from conformance.process.state import collect_seldom
from conformance.ranks.channel import Channel, Closed, Message
from conformance.reports.json_files import collector_paused

#: Imported before the first fork. What is missing here is imported by every rank anew.
_WARM = (
    "numpy.random",
    "torch",
    "torch.distributed",
    "torch.utils._device",
    "pytest",
    "conformance.accelerators.registry",
    "conformance.fixtures.accelerator",
    "conformance.ranks.rank_main",
)


def live() -> NoReturn:
    """Be the zygote, in a process that the guard has just forked. Nothing may return into the guard."""
    status = 1
    try:
        serve()
        status = 0
    except SystemExit as end:
        sys.stderr.write(f"{end.code}\n")
    except BaseException:  # noqa: BLE001 - the last frame of a process
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(status)


def serve() -> None:
    """Serve forks on the inherited socket whose number is the last argument."""
    channel = Channel(socket.socket(fileno=int(sys.argv[-1])))
    with collector_paused():
        for name in _WARM:
            importlib.import_module(name)
        prepare()
        settle()
    Zygote(channel).serve()


def settle() -> None:
    """Be fit to fork after imports: nothing for the collector to walk through in every rank, and one thread."""
    gc.collect()
    collect_seldom()
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        raise SystemExit(f"the zygote has {threads} threads; a fork of it would not be safe")


def prepare() -> None:
    """What a process needs before it can be a rank, or fork one."""
    import torch

    from conformance.ranks import collective_recorder as ledger
    from conformance.ranks import rank_main as rank

    torch.set_num_threads(1)
    rank.rewrite_assertions()
    ledger.record_collectives()


def become_rank() -> None:
    """The program of a rank with an interpreter of its own; the arguments are the descriptors of ``live``."""
    prepare()
    from conformance.ranks.rank_main import live

    live(*map(int, sys.argv[1:]))
    sys.stderr.flush()
    os._exit(0)  # as a forked rank ends: whatever a case has registered for the exit does not run


class Zygote:
    """Forks, signals and reaps ranks, by the number that the pool gave each."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._ranks: dict[int, int] = {}  # process → the pool's number
        self._strays_end = 0.0
        self._woken, self._waker = socket.socketpair()

    def serve(self) -> None:
        """Until the pool's end is closed."""
        adopt_orphans()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _only_wake)
        signal.signal(signal.SIGTERM, _end_of_parent)
        # From now on the guard's death, or its word, is an end of work, so that ranks' own children end as well.
        die_with_parent(signal.SIGTERM)
        try:
            self._channel.send({"kind": "up", "pid": os.getpid()})
            while True:
                self._step()
        except (Closed, ParentDied):
            self._end()

    def _step(self) -> None:
        ears: list[Channel | socket.socket] = [self._channel, self._woken]
        patience = 0.02 if self._strays_end else None
        ready, _, _ = select.select(ears, [], [], patience)
        if self._woken in ready:
            with contextlib.suppress(BlockingIOError):
                self._woken.recv(4096)
        self._reap()
        if self._channel in ready:
            for message in self._channel.receive():
                self._obey(message)

    def _obey(self, message: Message) -> None:
        if message["kind"] == "fork":
            self._fork(message)
            return
        if message["kind"] == "import":
            self._import(message["names"])
            return
        pid = next((pid for pid, number in self._ranks.items() if number == message["number"]), None)
        if pid is not None:  # else it is dead, and the pool is being told
            os.kill(pid, int(message["signal"]))

    def _import(self, names: list[str]) -> None:
        """Import what ranks would else import one by one. What is not there is the case's own failure, later."""
        with collector_paused():
            for name in names:
                with contextlib.suppress(ImportError):
                    importlib.import_module(name)
            settle()

    def _fork(self, message: Message) -> None:
        zygote = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_rank(zygote, message)
        self._ranks[pid] = int(message["number"])
        for descriptor in message["descriptors"]:
            os.close(descriptor)

    def _become_rank(self, zygote: int, message: Message) -> None:
        status = 70
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            os.setsid()
            die_with_parent(parent=zygote)
            for end in (self._channel.connection, self._woken, self._waker):
                end.close()
            if message["command"]:
                _execute(message["command"], message["descriptors"], message["environment"])
            from conformance.ranks.rank_main import live

            live(*message["descriptors"])
            status = 0
        except BaseException:  # noqa: BLE001 - the last frame of a process; nothing may return into the zygote's loop
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stderr.flush()
            os._exit(status)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._strays_end = 0.0
                return
            if not pid:
                break
            number = self._ranks.pop(pid, None)
            if number is not None:
                self._strays_end = time.monotonic() + LAST_WORDS
                self._signal_strays(signal.SIGTERM)
                self._channel.send({"kind": "exited", "number": number, "status": os.waitstatus_to_exitcode(status)})
        if self._strays_end:
            self._press_strays()

    def _press_strays(self) -> None:
        """Python's resource tracker cleans up and leaves by itself; others may need more than a word."""
        if not children() - set(self._ranks):
            self._strays_end = 0.0
        elif time.monotonic() > self._strays_end:
            self._signal_strays(signal.SIGKILL)

    def _signal_strays(self, number: signal.Signals) -> None:
        for pid in children() - set(self._ranks):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _end(self) -> None:
        """Kill the ranks, give what they left a moment, kill that too."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for pid in self._ranks:
            os.kill(pid, signal.SIGKILL)
        end_children(LAST_WORDS)


def _execute(command: list[str], descriptors: list[int], environment: dict[str, str]) -> None:
    """Go on as another program. That its parent's death ends it is remembered by the kernel."""
    for descriptor in descriptors:
        os.set_inheritable(descriptor, True)
    os.execve(command[0], [*command, *map(str, descriptors)], {**os.environ, **environment})  # noqa: S606 - the pool's own


class ParentDied(Exception):
    """The kernel's word that the guard is gone, or the guard's that pytest is."""


def _end_of_parent(number: int, frame: object) -> None:
    del number, frame
    raise ParentDied


def _only_wake(number: int, frame: object) -> None:
    """The wake-up descriptor does the work; without a handler the signal would be dropped."""
