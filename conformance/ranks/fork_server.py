"""Fork server: a clean interpreter that has imported what ranks need, forks them, and reaps them.

    pytest ── guard ── fork server ── ranks ── processes that cases start

The fork server never touches an accelerator and has one thread, so a fork of it is as good as a new interpreter and
takes milliseconds. It lives as long as the pytest process holds the other end of its channel. It adopts the processes
that ranks leave behind (it is a "child subreaper") and ends them.

The guard is its parent, and does the same for the fork server. If the guard is killed, the kernel tells the fork
server, which then ends its children and itself. So whichever process is killed with SIGKILL, the others clean up.
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

from conformance.process.lifetime import CLEAN_UP_SECONDS, adopt_orphans, children, die_with_parent, end_children
from conformance.process.state import collect_seldom
from conformance.ranks.channel import Channel, Closed, Message
from conformance.reports.json_files import collector_paused

#: Modules imported before the first fork. Every rank imports by itself what is missing here.
_WARM = (
    "numpy.random",
    "torch",
    "torch.distributed",
    "torch.utils._device",
    "pytest",
    "conformance.accelerators.registry",
    "conformance.fixtures.cases",
    "conformance.ranks.rank_main",
)
#: Exit status of a forked process that failed before it became a rank.
_FORK_FAILED = 70


def guard() -> None:
    """Fork the fork server, wait for its end, and end what it leaves. The last argument is its socket's number."""
    own_pid = os.getpid()
    adopt_orphans()
    guarded: list[int] = []

    def pass_on(number: int, frame: object) -> None:
        del frame
        for pid in guarded:
            os.kill(pid, number)

    signal.signal(signal.SIGTERM, pass_on)
    fork_server = os.fork()
    if fork_server == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        die_with_parent(parent=own_pid)
        _run_and_exit()
    guarded.append(fork_server)
    socket.socket(fileno=int(sys.argv[-1])).close()  # only the fork server keeps this end
    die_with_parent(signal.SIGTERM)
    _, status = os.waitpid(fork_server, 0)
    # The process id may be given to another process from now on.
    guarded.clear()
    end_children(CLEAN_UP_SECONDS)
    # abs: a death by a signal is negative, and must not become a success.
    os._exit(abs(os.waitstatus_to_exitcode(status)))


def _run_and_exit() -> NoReturn:
    """Be the fork server in a process that the guard has just forked. Nothing returns into the guard's code."""
    status = 1
    try:
        _serve()
        status = 0
    except SystemExit as end:
        sys.stderr.write(f"{end.code}\n")
    except BaseException:  # noqa: BLE001 - the last frame of a process
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(status)


def _serve() -> None:
    """Warm this interpreter up, then serve the pool until it closes the channel."""
    channel = Channel(socket.socket(fileno=int(sys.argv[-1])))
    # Nothing imported here becomes garbage, so collections during the imports only take time.
    with collector_paused():
        for name in _WARM:
            importlib.import_module(name)
        _prepare()
        _make_forkable()
    ForkServer(channel).serve()


def _make_forkable() -> None:
    """Make forks cheap and safe: freeze garbage collection, and require a single thread."""
    gc.collect()
    collect_seldom()
    # Threads of native libraries count too, which threading does not know.
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        raise SystemExit(f"the fork server has {threads} threads, so a fork of it would not be safe")


def _prepare() -> None:
    """Set up what every rank needs, in the process that forks it or in the rank itself."""
    import torch

    from conformance.ranks.collective_recorder import record_collectives
    from conformance.ranks.rank_main import rewrite_assertions

    torch.set_num_threads(1)
    rewrite_assertions()
    record_collectives()


def become_rank() -> None:
    """Run a rank in a new interpreter; the arguments are the descriptors of ``run_rank``."""
    _prepare()
    from conformance.ranks.rank_main import run_rank

    run_rank(*map(int, sys.argv[1:]))
    sys.stderr.flush()
    os._exit(0)  # as a forked rank ends: exit handlers that a case has registered do not run


class ForkServer:
    """Server that forks, signals and reaps ranks, which the pool numbers."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._ranks: dict[int, int] = {}  # process id → the pool's number
        self._strays_end = 0.0
        # Python writes a byte into it for each signal, which wakes select(). See signal.set_wakeup_fd.
        self._woken, self._waker = socket.socketpair()

    def serve(self) -> None:
        """Serve until the pool closes its end or the guard dies."""
        adopt_orphans()
        self._woken.setblocking(False)
        # A signal handler must never wait, and set_wakeup_fd() refuses a blocking descriptor.
        self._waker.setblocking(False)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _ignore)
        signal.signal(signal.SIGTERM, _raise_parent_died)
        # From now on SIGTERM, from the kernel or from the guard, ends the work in order: ranks' children end as well.
        die_with_parent(signal.SIGTERM)
        try:
            self._channel.send({"kind": "up", "pid": os.getpid()})
            while True:
                self._step()
        except (Closed, ParentDied):
            self._end()

    def _step(self) -> None:
        """Wait for a request or for the death of a child, and handle both."""
        sources: list[Channel | socket.socket] = [self._channel, self._woken]
        timeout = 0.02 if self._strays_end else None
        ready, _, _ = select.select(sources, [], [], timeout)
        if self._woken in ready:
            with contextlib.suppress(BlockingIOError):
                # The bytes only wake select(); _reap() asks the kernel for all dead children.
                self._woken.recv(4096)
        self._reap()
        if self._channel in ready:
            for message in self._channel.receive():
                self._handle(message)

    def _handle(self, message: Message) -> None:
        """Carry out one request of the pool: fork a rank, import modules, or send a signal to a rank."""
        if message["kind"] == "fork":
            self._fork(message)
            return
        if message["kind"] == "import":
            self._import(message["names"])
            return
        pid = next((pid for pid, number in self._ranks.items() if number == message["number"]), None)
        if pid is not None:  # else the rank is dead, and the pool gets a message about that
            os.kill(pid, int(message["signal"]))

    def _import(self, names: list[str]) -> None:
        """Import modules once for all later forks. One that fails becomes the failure of the cases that need it."""
        with collector_paused():
            for name in names:
                with contextlib.suppress(Exception):  # each rank that needs it tries again
                    importlib.import_module(name)
            _make_forkable()

    def _fork(self, message: Message) -> None:
        """Fork one rank and note its number. The child becomes the rank and never returns from here."""
        fork_server = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_rank(fork_server, message)
        self._ranks[pid] = int(message["number"])
        # The rank has its own copies; a copy left here would keep the pool from seeing the rank's end.
        for descriptor in message["descriptors"]:
            os.close(descriptor)

    def _become_rank(self, fork_server: int, message: Message) -> None:
        """Turn the forked child into a rank: undo the server's signal handling, then run cases. Never returns."""
        status = _FORK_FAILED
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            # A session of its own, so that Ctrl-C in the terminal reaches pytest and not the ranks.
            os.setsid()
            die_with_parent(parent=fork_server)
            for end in (self._channel.connection, self._woken, self._waker):
                end.close()
            if message["command"]:
                _execute(message["command"], message["descriptors"], message["environment"])
            from conformance.ranks.rank_main import run_rank

            run_rank(*message["descriptors"])
            status = 0
        except BaseException:  # noqa: BLE001 - the last frame of a process; nothing may return into the server's loop
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stderr.flush()
            os._exit(status)

    def _reap(self) -> None:
        """Reap ended children, report ranks among them, and start to end the processes that they left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._strays_end = 0.0
                return
            # Children are left, and none of them has ended.
            if not pid:
                break
            number = self._ranks.pop(pid, None)
            if number is not None:
                self._strays_end = time.monotonic() + CLEAN_UP_SECONDS
                self._signal_strays(signal.SIGTERM)
                self._channel.send({"kind": "exited", "number": number, "status": os.waitstatus_to_exitcode(status)})
        if self._strays_end:
            self._end_strays()

    def _end_strays(self) -> None:
        """Send SIGKILL to strays that have outlived their time. Strays are children that are no ranks."""
        # Python's resource tracker ends by itself after it has cleaned up, so strays get SIGTERM and some time first.
        if not children() - set(self._ranks):
            self._strays_end = 0.0
        elif time.monotonic() > self._strays_end:
            self._signal_strays(signal.SIGKILL)

    def _signal_strays(self, number: signal.Signals) -> None:
        for pid in children() - set(self._ranks):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _end(self) -> None:
        """Kill the ranks, and end every process that they have left."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for pid in self._ranks:
            os.kill(pid, signal.SIGKILL)
        end_children(CLEAN_UP_SECONDS)


def _execute(command: list[str], descriptors: list[int], environment: dict[str, str]) -> None:
    """Replace this process by another program. The kernel still ends it when its parent dies."""
    for descriptor in descriptors:
        os.set_inheritable(descriptor, True)
    os.execve(command[0], [*command, *map(str, descriptors)], {**os.environ, **environment})  # noqa: S606 - the pool's own


class ParentDied(Exception):
    """SIGTERM has arrived: from the kernel, because the guard is dead, or from the guard, because pytest is."""


def _raise_parent_died(number: int, frame: object) -> None:
    del number, frame
    raise ParentDied


def _ignore(number: int, frame: object) -> None:
    """Ignore SIGCHLD. The handler exists so that the signal wakes select()."""
