"""A rank's life: it loads the accelerator once, and then takes one case after the other."""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from conformance.accelerators.registry import resolve
from conformance.case import Case, seed_of
from conformance.checker import Checker
from conformance.errors import ConformanceError
from conformance.process.rank_state import RankState
from conformance.process.state import seed_everything
from conformance.ranks import body
from conformance.ranks.channel import Channel
from conformance.ranks.collective_recorder import AHEAD, ARRIVING, JOINING, Ledger, open_ledger
from conformance.ranks.group import Groups, identify
from conformance.ranks.messages import Done, Hello, Join, Leave, Ready, Unfit, Work, packed, unpacked

#: What this signal asks for comes even from a rank that holds the GIL.
SHOW_STACKS = signal.SIGUSR1
#: The arguments that a rank makes itself; all others come from the pytest process.
RANK_SIDE = frozenset({"rank", "world_size", "group", "accelerator", "device", "declaration", "case", "check"})


def rewrite_assertions() -> None:
    """Let failed asserts show their values, as under pytest. Where pytest has moved its parts, they show none."""
    try:
        from _pytest.assertion import install_importhook
        from _pytest.config import get_config

        install_importhook(get_config()).mark_rewrite("conformance.suites")
    except (ImportError, AttributeError, TypeError):
        return


def live(control: int, output: int, stacks: int, ledger: int) -> None:
    """Serve the pool until it closes its end."""
    _redirect(output)
    faulthandler.enable(stacks, all_threads=True)
    faulthandler.register(SHOW_STACKS, file=stacks, all_threads=True, chain=False)
    channel = Channel(socket.socket(fileno=control))
    messages = channel.messages()
    hello = unpacked(next(messages))
    assert isinstance(hello, Hello)
    book = Ledger(ledger)
    open_ledger(book)
    book.stage("loading the accelerator")
    sys.path[:] = hello.module_path
    try:
        rank = Rank(channel, hello, book)
    except ConformanceError as error:
        channel.send(packed(Unfit(str(error))))
        return
    channel.send(packed(Ready(os.getpid())))
    for message in messages:
        leases = message.pop("descriptors", [])
        request = unpacked(message)
        if isinstance(request, Work):
            rank.perform(request, leases)
        elif isinstance(request, Join):
            rank.join_ahead(request)
        elif isinstance(request, Leave):
            rank.leave(request)


def _redirect(output: int) -> None:
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    # A line at a time: what a rank has printed must not die with it.
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        stream = open(descriptor, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


class Rank:
    """Performs cases. Its identity is part of the work: any process may be any rank."""

    def __init__(self, channel: Channel, hello: Hello, ledger: Ledger) -> None:
        self._channel, self._hello, self._ledger = channel, hello, ledger
        self._subject = resolve(hello.spec)
        self._accelerator = self._subject.load()
        self._backend = str(self._accelerator.communication_backend_name())
        self._groups = Groups(hello.store_host, hello.store_port)
        self._process = os.getpid()
        self._state: RankState | None = None
        self._leaked: list[str] = []
        self._threads: list[str] = []
        self._leases: list[int] = []

    def join_ahead(self, join: Join) -> None:
        """Make the group of the next case while pytest is between two cases."""
        self._ledger.stage("joining a group ahead")
        identify(join.rank, join.world_size, join.local)
        self._groups.prepare(join, self._backend)
        self._state = RankState.take()
        self._ledger.stage(AHEAD)

    def perform(self, work: Work, leases: list[int]) -> None:
        """Join, run, say how it ended. The leases of its devices are kept until it has left."""
        self._leases = leases
        self._ledger.begin(work.nonce)
        self._ledger.stage(ARRIVING)
        identify(work.rank, work.world_size, work.local)
        state, self._state = self._state or RankState.take(), None
        checker = Checker()
        error: BaseException | None = None
        generated = False
        try:
            function = body.find_function(work.module, work.file, work.function)
            generated = body.is_generated(function)
            self._run(work, function, checker)
        except BaseException as raised:  # noqa: BLE001 - SystemExit too: a body that ends the process has failed
            error = raised
        if os.getpid() != self._process:
            os._exit(70)  # a fork that the body made has come back from it
        end = body.end_of(work, error, checker, self._accelerator, generated=generated)
        if error is not None:
            # Its frames hold the group, which the other ranks may be waiting in until the last reference is gone.
            traceback.clear_frames(error.__traceback__)
            error = None
        # The ledger keeps the last collective, and the rank its place in the group: the pool says when to leave.
        self._channel.send(packed(end))
        # Meanwhile the pool hears of it, and of the others.
        leaked, self._threads = state.give_back(), state.new_threads()
        self._leaked = [*leaked, "threads"] if self._threads else leaked

    def _run(self, work: Work, function: Callable[..., Any], checker: Checker) -> None:
        case = body.case_named(function, work.case_id)
        device = self._device(work)
        self._ledger.stage(JOINING)
        group = self._groups.join(work.nonce, self._backend, work.rank, work.world_size, work.deadline)
        given = body.arguments(function, work.values, self._own(work, case, device, group, checker))
        seed_everything(seed_of(f"{case.id}@{work.rank}", self._hello.seed), self._accelerator)
        self._ledger.stage("in the body")
        function(**given)
        self._accelerator.synchronize()  # an asynchronous error belongs to the case that caused it

    def _own(self, work: Work, case: Case, device: Any, group: Any, checker: Checker) -> dict[str, Callable[[], Any]]:
        return {
            "rank": lambda: work.rank,
            "world_size": lambda: work.world_size,
            "group": lambda: group,
            "accelerator": lambda: self._accelerator,
            "device": lambda: device,
            "declaration": self._declaration,
            "case": lambda: case,
            "check": lambda: checker,
        }

    def _declaration(self) -> Any:
        file = self._hello.capabilities
        return self._subject.declaration(self._accelerator, Path(file) if file else None)

    def _device(self, work: Work) -> Any:
        """The rank's leased device; where devices are shared, and fewer than ranks, they are taken in turn."""
        import torch

        count = max(1, int(self._accelerator.device_count()))
        if count > 1:
            index = work.rank % count if work.device is None else work.device
            self._accelerator.set_device(index)
            return torch.device(str(self._accelerator.device_name(index)))
        return torch.empty(0, device=str(self._accelerator.current_device_name())).device

    def leave(self, leave: Leave) -> None:
        """Give the group back, and say so. Who has kept a thread says that it must not be used again."""
        self._ledger.stage("leaving the group")
        self._groups.leave()
        while self._leases:
            os.close(self._leases.pop())
        self._ledger.stage("idle")
        kept = f"it kept threads: {', '.join(self._threads)}" if self._threads else ""
        self._channel.send(packed(Done(leave.nonce, self._leaked, kept)))
        if leave.then:
            join = unpacked(leave.then)
            assert isinstance(join, Join)
            self.join_ahead(join)
