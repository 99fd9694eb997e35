"""Device leases: two processes of this user never run ranks on one device at the same time.

A lease is a lock on a file for each device. The descriptors go to the ranks as well, so the kernel frees a device
exactly when its last user is dead, however that came about; a rank that not even SIGKILL ends keeps its device.
Who wants devices stands in a queue, and only the first one in it takes: a case of many ranks is not overtaken forever.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_POLL = 0.005
_QUEUE = "queue"


class DevicesBusy(Exception):
    """Fewer devices became free than are wanted; the sentence says who has the others."""


@dataclass(frozen=True)
class Lease:
    """Devices that are ours: their indices in this process, and the descriptors that hold them."""

    devices: tuple[int, ...]
    descriptors: tuple[int, ...]

    def of_rank(self, rank: int) -> tuple[int, tuple[int, ...]]:
        return self.devices[rank], (self.descriptors[rank],)


class Leases:
    """Leases of the devices that ``names`` names, in the order in which this process counts them."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._folder, self._names = folder, tuple(names)

    @contextlib.contextmanager
    def lease(self, count: int, patience: float, holder: str) -> Iterator[Lease]:
        """All of ``count`` devices or none. Raises DevicesBusy when they are not free within ``patience`` seconds."""
        until = time.monotonic() + patience
        held: dict[int, int] = {}
        try:
            with self._first_in_the_queue(until, count):
                self._collect(held, count, until, holder)
            yield Lease(tuple(held), tuple(held.values()))
        finally:
            for descriptor in held.values():
                os.close(descriptor)

    @contextlib.contextmanager
    def _first_in_the_queue(self, until: float, count: int) -> Iterator[None]:
        while (descriptor := self._try(_QUEUE)) is None:
            if time.monotonic() > until:
                raise DevicesBusy(f"{count} devices are wanted, and others still wait for theirs.")
            time.sleep(_POLL)
        try:
            yield
        finally:
            os.close(descriptor)

    def _collect(self, held: dict[int, int], count: int, until: float, holder: str) -> None:
        while True:
            for index, name in enumerate(self._names):
                if index not in held and len(held) < count and (descriptor := self._try(name)) is not None:
                    held[index] = descriptor
                    os.ftruncate(descriptor, 0)
                    os.pwrite(descriptor, f"process {os.getpid()} for {holder}".encode(), 0)
            if len(held) >= count:
                return
            if time.monotonic() > until:
                raise DevicesBusy(f"{count} devices are wanted, {len(held)} became free: {self._others(held)}")
            time.sleep(_POLL)

    def _others(self, held: dict[int, int]) -> str:
        """Who has what, as the lock files say it. A device stays taken while a rank that used it cannot be killed."""
        taken = [name for index, name in enumerate(self._names) if index not in held]
        notes = [(name, (self._folder / name).read_text(encoding="utf-8").strip()) for name in taken]
        return "; ".join(f"device {name} is held by {note or 'a process'}" for name, note in notes)

    def _try(self, name: str) -> int | None:
        """A descriptor with the lock, or None where another process has it."""
        import fcntl  # not on every platform that imports this module

        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor


def lease_folder(device_type: str) -> Path:
    """One folder for all runs of this user on this machine."""
    return Path(tempfile.gettempdir()) / f"accelerator-conformance-{os.getuid()}" / device_type


def physical_names(count: int, visible: str) -> list[str]:
    """What to call devices 0 … count-1, where a variable such as CUDA_VISIBLE_DEVICES may have renumbered them."""
    listed = [word.strip() for word in visible.split(",") if word.strip()]
    safe = all(word.replace("-", "").isalnum() for word in listed)
    return listed[:count] if safe and len(listed) >= count else [str(index) for index in range(count)]
