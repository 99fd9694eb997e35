"""Main loop of a rank: it loads the accelerator once, and then runs one case after the other."""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conformance.accelerators.interface import MissingMember
from conformance.accelerators.registry import resolve
from conformance.base.errors import ConformanceError
from conformance.judging.checker import Checker
from conformance.judging.finding import EnvironmentLacks
from conformance.plan.case import Case, seed_of
from conformance.process.state import RankState, seed_everything
from conformance.ranks import body
from conformance.ranks.channel import (
    SHARED_FOLDER_MARK,
    Channel,
    Done,
    Hello,
    Leave,
    LoadFailed,
    Ready,
    Work,
    decode,
    encode,
)
from conformance.ranks.collective_recorder import ARRIVING, JOINING, CollectiveRecorder, record_to
from conformance.ranks.group import Groups, set_rank_environment

if TYPE_CHECKING:
    from conformance.judging.answers import Answers

#: Signal that makes a rank write its stacks, even while native code holds the GIL.
SHOW_STACKS = signal.SIGUSR1
#: Arguments that a rank makes itself; all others come from the pytest process.
RANK_SIDE = frozenset({"rank", "world_size", "group", "accelerator", "device", "declaration", "case", "check"})


def rewrite_assertions() -> None:
    """Let failed asserts show their values, as under pytest. Do nothing where pytest has moved these functions."""
    try:
        from _pytest.assertion import install_importhook
        from _pytest.config import get_config

        install_importhook(get_config()).mark_rewrite("conformance.suites")
    except (ImportError, AttributeError, TypeError):
        return


def run_rank(control: int, output: int, stacks: int, records: int) -> None:
    """Serve the pool until it closes its end. The arguments are descriptors that the pool has passed."""
    _redirect(output)
    faulthandler.enable(stacks, all_threads=True)
    faulthandler.register(SHOW_STACKS, file=stacks, all_threads=True, chain=False)
    channel = Channel(socket.socket(fileno=control))
    messages = channel.messages()
    hello = decode(next(messages))
    assert isinstance(hello, Hello)
    # Before the accelerator loads, so that a hang in its load is seen as one.
    recorder = CollectiveRecorder(records)
    record_to(recorder)
    recorder.stage("loading the accelerator")
    sys.path[:] = hello.module_path
    try:
        rank = Rank(channel, hello, recorder)
    except ConformanceError as error:
        channel.send(encode(LoadFailed(str(error))))
        return
    channel.send(encode(Ready(os.getpid())))
    for message in messages:
        # The kernel frees a device when the last process that has its descriptor ends, however it ends.
        device_locks = message.pop("descriptors", [])
        request = decode(message)
        if isinstance(request, Work):
            rank.perform(request, device_locks)
        elif isinstance(request, Leave):
            rank.leave(request)


def _redirect(output: int) -> None:
    """Send stdout and stderr to the pool, and read stdin from the null device."""
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    # Line buffering: a rank that dies must not take its output with it.
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        stream = open(descriptor, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def require_shared(folder: Path, work: Work, store: Any) -> None:
    """Raise EnvironmentLacks on every rank if one of them does not see the folder that pytest has made."""
    seen = (folder.parent / SHARED_FOLDER_MARK).exists()
    store.set(f"shared_dir/{work.rank}", "" if seen else socket.gethostname())
    answers = [store.get(f"shared_dir/{rank}").decode() for rank in range(work.world_size)]
    blind = [f"rank {rank} on {host}" for rank, host in enumerate(answers) if host]
    if blind:
        raise EnvironmentLacks(
            f"the ranks share no folder: {', '.join(blind)} cannot see {folder.parent}. "
            "Name one that all hosts share with --shared-dir DIR."
        )


class Rank:
    """A process that runs cases. Its rank comes with the work: any process may be any rank."""

    def __init__(self, channel: Channel, hello: Hello, recorder: CollectiveRecorder) -> None:
        self._channel, self._hello, self._recorder = channel, hello, recorder
        self._spec = resolve(hello.spec)
        self._accelerator = self._spec.load()
        self._backend = str(self._accelerator.communication_backend_name())
        self._groups = Groups(hello.store_host, hello.store_port)
        self._process = os.getpid()
        self._leaked: list[str] = []
        self._threads: list[str] = []
        self._device_locks: list[int] = []

    def perform(self, work: Work, device_locks: list[int]) -> None:
        """Join the group, run the body, and report how it ended. Hold the device locks until the rank has left."""
        self._device_locks = device_locks
        self._recorder.begin(work.nonce)
        self._recorder.stage(ARRIVING)
        # Before the state is taken, so that the variables of this rank are not counted as leaked.
        set_rank_environment(work.rank, work.world_size, work.local)
        state = RankState.take()
        checker = Checker(self._answers(work))
        error: BaseException | None = None
        generated = False
        try:
            function = body.find_function(work.module, work.file, work.function)
            generated = body.is_generated(function)
            self._run(work, function, checker)
        except BaseException as raised:  # noqa: BLE001 - SystemExit too: a body that ends the process has failed
            error = raised
        if os.getpid() != self._process:
            os._exit(70)  # a fork that the body has made returned from the body
        end = body.end_of(work, error, checker, self._accelerator, generated=generated)
        if error is not None:
            # Its frames hold the group, and the other ranks may wait until the last reference to it is gone.
            traceback.clear_frames(error.__traceback__)
            error = None
        # The record of the last collective and the membership in the group stay: the pool says when to leave.
        self._channel.send(encode(end))
        # The state is restored while the pool hears of the end of this rank and of the others.
        leaked, self._threads = state.give_back(), state.new_threads()
        self._leaked = [*leaked, "threads"] if self._threads else leaked

    def _answers(self, work: Work) -> Answers | None:
        """Return the rank's part of the case's answer to the challenge, or None in a run without one."""
        if not self._hello.challenge:
            return None
        # Imported here, so that a run without a challenge does not load it.
        from conformance.judging.answers import Answers

        return Answers(self._hello.challenge, f"{work.case_id}@{work.rank}", work.claimed)

    def _run(self, work: Work, function: Callable[..., Any], checker: Checker) -> None:
        """Join the group, build the arguments, and run the body once. Errors of the body pass to the caller."""
        case = body.case_named(function, work.case_id)
        device = self._device(work)
        self._recorder.stage(JOINING)
        group = self._groups.join(work.nonce, self._backend, work.rank, work.world_size, work.deadline)
        arguments = body.arguments(function, work.values, self._own(work, case, device, group, checker))
        # The rank is part of the seed, so that ranks draw different numbers.
        seed_everything(seed_of(f"{case.id}@{work.rank}", self._hello.seed), self._accelerator)
        if "shared_dir" in arguments:
            require_shared(arguments["shared_dir"], work, group.get_group_store())
        self._recorder.stage("in the body")
        function(**arguments)
        with contextlib.suppress(MissingMember):  # the cases about it judge that
            self._accelerator.synchronize()  # an asynchronous error belongs to the case that caused it

    def _own(self, work: Work, case: Case, device: Any, group: Any, checker: Checker) -> dict[str, Callable[[], Any]]:
        """Return makers of the arguments that a rank makes itself."""
        return {
            "rank": lambda: work.rank,
            "world_size": lambda: work.world_size,
            "group": lambda: group,
            "accelerator": lambda: self._accelerator,
            "device": lambda: device,
            "declaration": lambda: self._declaration,
            "case": lambda: case,
            "check": lambda: checker,
        }

    @functools.cached_property
    def _declaration(self) -> Any:
        """Return the declaration, which a process makes once, as pytest's does: its lookup of claims takes 8 ms."""
        file = self._hello.capabilities
        return self._spec.declaration(self._accelerator, Path(file) if file else None)

    def _device(self, work: Work) -> Any:
        """Return the rank's locked device. Where ranks share devices, take them in turn."""
        import torch

        count = max(1, int(self._accelerator.device_count()))
        if count > 1:
            index = work.rank % count if work.device is None else work.device
            self._accelerator.set_device(index)
            return torch.device(str(self._accelerator.device_name(index)))
        return torch.empty(0, device=str(self._accelerator.current_device_name())).device

    def leave(self, leave: Leave) -> None:
        """Leave the group and report it, and why this rank must not be used again, such as leftover threads."""
        self._recorder.stage("leaving the group")
        kept = self._groups.leave()
        while self._device_locks:
            os.close(self._device_locks.pop())
        self._recorder.stage("idle")
        retire = f"it kept threads: {', '.join(self._threads)}" if self._threads else kept
        self._channel.send(encode(Done(leave.nonce, self._leaked, retire)))
