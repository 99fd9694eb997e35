"""The memory that ranks share, and how they agree on it.

It is a Linux memfd, which has no name: nothing is left in ``/dev/shm``, whose size does not matter either, and the
kernel frees the pages with the last process that maps them, however that ends.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import secrets
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

from conformance.errors import SetupError
from conformance.kernels.native import shared_object

SOURCE = Path(__file__).parent / "csrc" / "all_reduce.cpp"
MAX_RANKS = 64
_TOKEN = 16
#: The token's place, one memory page before everything else.
_TOKEN_SPACE = mmap.PAGESIZE


@dataclass(frozen=True)
class Tuning:
    """Sizes in bytes, and how often a waiting rank looks before it gives way, and gives way before it sleeps.

    A tensor of at most ``whole`` bytes a rank is reduced whole by every rank, a larger one in slices: it spares a
    second wait, and costs reading every rank's all. Rank 0's numbers hold for all.

    Measured with two ranks on two cores that others wanted as well: few looks and many times giving way is the fastest
    (1 KiB in 20 µs at the median; 168 µs with ten times the looks, 114 µs if it sleeps at once).
    """

    chunk: int = 1 << 19
    whole: int = 1 << 19
    spins: int = 200
    yields: int = 200

    def whole_limit(self, ranks: int) -> int:
        """Bytes up to which ``ranks`` ranks reduce everything each."""
        return min(self.chunk, self.whole // ranks)


class Segment:
    """This rank's mapping of the shared memory, and the library's handle on it."""

    def __init__(self, memory: mmap.mmap, rank: int, processes: list[int], tuning: Tuning) -> None:
        self.library, self.processes, self._memory = library(), processes, memory
        self._view: Any = ctypes.c_char.from_buffer(memory, _TOKEN_SPACE)
        crowded = len(processes) > len(os.sched_getaffinity(0))
        self.handle: ctypes.c_void_p | None = ctypes.c_void_p(
            self.library.low_latency_open(
                ctypes.addressof(self._view),
                rank,
                len(processes),
                tuning.chunk,
                tuning.whole_limit(len(processes)),
                0 if crowded else tuning.spins,  # whom this rank waits for may need its core
                tuning.yields,
                (ctypes.c_int * len(processes))(*processes),
            )
        )

    def close(self) -> None:
        """Leave and unmap; a second time does nothing."""
        if self.handle is not None:
            self.library.low_latency_close(self.handle)
            self.handle = self._view = None
            self._memory.close()


@dataclass(frozen=True)
class _Member:
    """What a rank tells the others first. ``obstacle`` is empty if it could use shared memory."""

    machine: str
    process: int
    obstacle: str
    tuning: Tuning


@dataclass(frozen=True)
class _Offer:
    """Where the others find rank 0's memory."""

    path: str
    token: bytes
    error: str = ""


def library() -> ctypes.CDLL:
    """The compiled library with its signatures. Raises SetupError if it cannot be built here."""
    loaded = shared_object(SOURCE, "the shared-memory all-reduce", "torch.distributed does the work without it")
    pointer, size, word = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32
    loaded.low_latency_bytes.argtypes, loaded.low_latency_bytes.restype = [ctypes.c_int, size], size
    loaded.low_latency_open.argtypes = [
        pointer, ctypes.c_int, ctypes.c_int, size, size, word, word, ctypes.POINTER(ctypes.c_int)
    ]  # fmt: skip
    loaded.low_latency_open.restype = pointer
    loaded.low_latency_all_reduce.argtypes = [pointer, pointer, size, word, word, ctypes.c_int64]
    for name in ("resume", "culprit", "give_up", "close"):
        getattr(loaded, f"low_latency_{name}").argtypes = [pointer]
    loaded.low_latency_call_of.argtypes = [pointer, ctypes.c_int, pointer, pointer, pointer]
    return loaded


def agree(group: dist.ProcessGroup | None, portable: str, tuning: Tuning) -> tuple[Segment | None, str]:
    """A segment on every rank of ``group``, or None on every rank; and why, the same sentence on all of them."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if size == 1:
        return None, "there is one rank, and nothing to do"
    mine = _Member(_machine(), os.getpid(), portable or _obstacle(size), tuning)
    members: list[_Member] = _gathered(mine, group)
    why = _first(f"rank {index}: {member.obstacle}" for index, member in enumerate(members) if member.obstacle)
    if not why and len({member.machine for member in members}) > 1:
        why = "the ranks are on several hosts"
    if why:
        return None, why
    agreed = members[0].tuning
    memory, descriptor, offer = _create(size, agreed) if rank == 0 else (None, -1, None)
    found: list[_Offer | None] = _gathered(offer, group)
    assert found[0] is not None
    memory, error = (memory, found[0].error) if rank == 0 else _attach(found[0])
    errors: list[str] = _gathered(error, group)
    if descriptor >= 0:
        os.close(descriptor)
    why = _first(f"rank {index}: {error}" for index, error in enumerate(errors) if error)
    if why or memory is None:
        if memory is not None:
            memory.close()
        return None, why
    segment = Segment(memory, rank, [member.process for member in members], agreed)
    return segment, f"{size} ranks share {len(memory) >> 10} KiB on one host"


def _gathered(value: Any, group: dist.ProcessGroup | None) -> list[Any]:
    values: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values


def _first(reasons: Any) -> str:
    return next(iter(reasons), "")


def _machine() -> str:
    """The same text for two processes that run under one kernel."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _obstacle(ranks: int) -> str:
    if sys.platform != "linux" or not hasattr(os, "memfd_create"):
        return f"{sys.platform} has no memfd"
    if not _machine():
        return "/proc does not say which machine this is"
    if ranks > MAX_RANKS:
        return f"{ranks} ranks are more than {MAX_RANKS}"
    try:
        library()
    except SetupError as error:
        return " ".join(str(error).split())
    return ""


def _create(ranks: int, tuning: Tuning) -> tuple[mmap.mmap | None, int, _Offer]:
    size = _TOKEN_SPACE + library().low_latency_bytes(ranks, tuning.chunk)
    descriptor = -1
    try:
        descriptor = os.memfd_create("low_latency_all_reduce")
        os.posix_fallocate(descriptor, 0, size)  # no memory is an error here, and a signal later
        memory = _mapped(descriptor, size)
    except OSError as error:
        reason = f"{size >> 10} KiB of shared memory cannot be had: {error.strerror}"
        return None, descriptor, _Offer("", b"", reason)
    token = secrets.token_bytes(_TOKEN)
    memory[:_TOKEN] = token
    return memory, descriptor, _Offer(f"/proc/{os.getpid()}/fd/{descriptor}", token)


def _attach(offer: _Offer) -> tuple[mmap.mmap | None, str]:
    if offer.error:
        return None, ""  # rank 0 has said it
    try:
        descriptor = os.open(offer.path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        return None, f"rank 0's memory cannot be opened: {error.strerror}"
    try:
        memory = _mapped(descriptor, os.fstat(descriptor).st_size)
    except (OSError, ValueError) as error:
        return None, f"rank 0's memory cannot be mapped: {error}"
    finally:
        os.close(descriptor)
    if memory[:_TOKEN] != offer.token:
        # Ranks in two containers may number their processes alike.
        memory.close()
        return None, "rank 0's memory is not what its process number shows here"
    return memory, ""


def _mapped(descriptor: int, size: int) -> mmap.mmap:
    return mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0))
