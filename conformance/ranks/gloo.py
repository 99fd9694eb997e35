"""Gloo as warm ranks use it: one network device for all groups, fewer questions to the store, and no spinning."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any


def share_devices() -> None:
    """Let every gloo group of this process use one network device: a listening socket and the thread of its events.

    A group with a device of its own starts a thread with it and joins that at its end, which takes up to 10 ms: where
    cases are shorter than that, threads of dead groups pile up. A group's connections are its own as before.
    """
    try:
        from torch._C._distributed_c10d import ProcessGroupGloo
    except ImportError:
        return  # a torch without gloo
    module: Any = importlib.import_module("torch.distributed.distributed_c10d")
    gloo: Any = ProcessGroupGloo
    known = hasattr(gloo, "create_device") and hasattr(gloo, "_Options")
    if not known or module.ProcessGroupGloo is not gloo:
        return  # its parts have other names, and every group makes its own; or this was done before

    @functools.cache
    def devices(interfaces: str) -> list[Any]:
        with threads_that_wait():
            return [gloo.create_device(interface=name) for name in interfaces.split(",")]

    class SharedDevice(ProcessGroupGloo):
        def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
            options = gloo._Options()
            options._devices = devices(os.environ.get("GLOO_SOCKET_IFNAME", "lo"))
            options._threads = 2 * len(options._devices)  # as torch has it
            options._timeout = timeout
            super().__init__(addresses()(store), rank, size, options)

    SharedDevice.__name__ = SharedDevice.__qualname__ = ProcessGroupGloo.__name__
    module.ProcessGroupGloo = SharedDevice


@contextlib.contextmanager
def threads_that_wait() -> Iterator[None]:
    """Threads started inside get a processor when whoever has it sleeps, or its time is up; they take it from nobody.

    Gloo's thread of events is woken by a message, finds that the thread that is just sending holds the connection's
    lock, and asks again without a pause. On the sender's processor it would keep the sender from letting go of it for
    a whole slice of time, which is as long as a short case. Where a sandbox forbids it, cases only take longer.
    """
    policy, parameter = os.sched_getscheduler(0), os.sched_getparam(0)
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, policy, parameter)


@functools.cache
def addresses() -> Any:
    """The class of the store in which a new group's ranks find each other's addresses. It imports torch.

    Gloo waits for every key and then gets it, which waits once more, and does so for what it has set itself: six
    questions to the server for two ranks. What this rank has set is known here, which leaves three.
    """
    store: Any = importlib.import_module("torch._C._distributed_c10d").Store

    class Addresses(store):  # type: ignore[misc]
        def __init__(self, shared: Any) -> None:
            super().__init__()
            self._shared = shared
            self._own: dict[str, bytes] = {}

        def set(self, key: str, value: bytes) -> None:
            self._own[key] = value
            self._shared.set(key, value)

        def wait(self, keys: list[str], timeout: timedelta) -> None:
            others = [key for key in keys if key not in self._own]
            if others:
                self._shared.wait(others, timeout)

        def get(self, key: str) -> bytes:
            return self._own[key] if key in self._own else bytes(self._shared.get(key))

    return Addresses
