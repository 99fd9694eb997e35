"""Device locks: two processes of one user never run ranks on one device at the same time.

Each device has a lock file. The ranks inherit the descriptors of their locks, so the kernel frees a device exactly when
the last process that uses it has ended. A rank that even SIGKILL does not end keeps its device. Processes that want
devices wait in a queue, and only the first in the queue takes devices: a case of many ranks is not overtaken for ever.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

#: Seconds between two attempts. A file lock has no timeout of its own.
_POLL = 0.002
_QUEUE = "queue"


class DevicesBusy(Exception):
    """Fewer devices became free than are needed; the sentence says who holds the others."""


@dataclass(frozen=True)
class LockedDevices:
    """Devices that this process holds: their indices in this process, and the descriptors of their locks."""

    devices: tuple[int, ...]
    descriptors: tuple[int, ...]

    def of_rank(self, rank: int) -> tuple[int, tuple[int, ...]]:
        """Return the device index of a rank, and the descriptors that hold that device."""
        return self.devices[rank], (self.descriptors[rank],)


class DeviceLocks:
    """Locks of the devices ``names``, in the order in which this process counts them."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._folder, self._names = folder, tuple(names)

    @contextlib.contextmanager
    def lock(self, count: int, timeout: float, holder: str) -> Iterator[LockedDevices]:
        """Lock ``count`` devices, or none. Raise DevicesBusy if they are not free within ``timeout`` seconds."""
        until = time.monotonic() + timeout
        held: dict[int, int] = {}
        try:
            with self._first_in_the_queue(until, count):
                self._collect(held, count, until, holder)
            # In the order of the devices, not in that in which they became free: warm ranks are of one device each.
            ordered = sorted(held)
            yield LockedDevices(tuple(ordered), tuple(held[index] for index in ordered))
        finally:
            for descriptor in held.values():
                os.close(descriptor)

    @contextlib.contextmanager
    def _first_in_the_queue(self, until: float, count: int) -> Iterator[None]:
        """Hold the lock of the queue, so that a process that needs many devices is not overtaken for ever."""
        while (descriptor := self._try(_QUEUE)) is None:
            if time.monotonic() > until:
                raise DevicesBusy(f"{count} devices are needed, and other processes are ahead in the queue.")
            time.sleep(_POLL)
        try:
            yield
        finally:
            os.close(descriptor)

    def _collect(self, held: dict[int, int], count: int, until: float, holder: str) -> None:
        """Lock free devices into ``held`` until there are ``count``. Raises ``DevicesBusy`` at the time ``until``."""
        while True:
            for index, name in enumerate(self._names):
                if index not in held and len(held) < count and (descriptor := self._try(name)) is not None:
                    held[index] = descriptor
                    # The holder is written into the lock file for the message of a process that waits in vain.
                    os.ftruncate(descriptor, 0)
                    os.pwrite(descriptor, f"process {os.getpid()} for {holder}".encode(), 0)
            if len(held) >= count:
                return
            if time.monotonic() > until:
                raise DevicesBusy(f"{count} devices are needed, {len(held)} became free: {self._holders(held)}")
            time.sleep(_POLL)

    def _holders(self, held: dict[int, int]) -> str:
        """Return who holds the other devices, as the lock files say."""
        # A device stays locked as long as a rank that uses it cannot be killed.
        held_elsewhere = [name for index, name in enumerate(self._names) if index not in held]
        notes = [(name, (self._folder / name).read_text(encoding="utf-8").strip()) for name in held_elsewhere]
        return "; ".join(f"device {name} is held by {note or 'a process'}" for name, note in notes)

    def _try(self, name: str) -> int | None:
        """Return a descriptor that holds the lock, or None if another process holds it."""
        import fcntl  # not on every platform that imports this module

        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor


def lock_folder(device_type: str) -> Path:
    """Return the folder of lock files for all runs of this user on this machine."""
    return Path(tempfile.gettempdir()) / f"accelerator-conformance-{os.getuid()}" / device_type


def physical_names(count: int, visible: str) -> list[str]:
    """Return names of devices 0 … count-1. A variable such as CUDA_VISIBLE_DEVICES may have renumbered them."""
    listed = [word.strip() for word in visible.split(",") if word.strip()]
    safe = all(word.replace("-", "").isalnum() for word in listed)
    return listed[:count] if safe and len(listed) >= count else [str(index) for index in range(count)]
