"""Shared memory between ranks, and the agreement of the ranks to use it.

The memory is a Linux memfd, which has no name in the file system. So nothing is left in ``/dev/shm``, and its size
limit does not apply. The operating system frees the pages when the last process that maps them has ended, however it
ended.
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

from conformance.base.errors import SetupError
from conformance.kernels.native import shared_object

SOURCE = Path(__file__).parent / "csrc" / "all_reduce.cpp"
MAX_RANKS = 64
#: Random bytes that prove that the mapped memory is the one that rank 0 has made.
_TOKEN = 16
#: Bytes in front of the segment's data: one memory page, which begins with the token.
_TOKEN_SPACE = mmap.PAGESIZE


@dataclass(frozen=True)
class Tuning:
    """Tuning parameters: sizes in bytes, and how a waiting rank spins and yields before it sleeps.

    A waiting rank reads the word ``spins`` times, then yields the core ``yields`` times, then sleeps. Every rank
    reduces a tensor of up to ``whole`` bytes, divided by the number of ranks, completely. A larger tensor is reduced in
    slices. Reducing it completely saves a second wait, and costs reading all of every rank's tensor. All ranks use rank
    0's parameters.

    Measured with two ranks on two cores with other load: few spins and many yields are fastest (1 KiB in 20 µs at the
    median; 168 µs with ten times the spins, 114 µs if a rank sleeps at once).
    """

    chunk: int = 1 << 19
    whole: int = 1 << 19
    spins: int = 200
    yields: int = 200

    def whole_limit(self, ranks: int) -> int:
        """Return the size in bytes up to which each of ``ranks`` ranks reduces the whole tensor."""
        return min(self.chunk, self.whole // ranks)


class Segment:
    """Mapping of the shared memory on this rank, and the compiled library's handle on it."""

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
                0 if crowded else tuning.spins,  # the awaited rank may need the core on which this rank would spin
                tuning.yields,
                (ctypes.c_int * len(processes))(*processes),
            )
        )

    def close(self) -> None:
        """Leave the segment and unmap the memory. A second call does nothing."""
        if self.handle is not None:
            self.library.low_latency_close(self.handle)
            self.handle = self._view = None
            self._memory.close()


@dataclass(frozen=True)
class _RankFacts:
    """Facts that every rank sends to the others first. ``obstacle`` is empty if the rank can use shared memory."""

    machine: str
    process: int
    obstacle: str
    tuning: Tuning


@dataclass(frozen=True)
class _MemoryOffer:
    """Path of rank 0's memory, and the token in it; or the ``error`` why there is none."""

    path: str
    token: bytes
    error: str = ""


def library() -> ctypes.CDLL:
    """Return the compiled library with its signatures. Raises SetupError if it cannot be built here."""
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
    """Return a segment on every rank of ``group``, or None on every rank; and the reason, the same on all ranks.

    Every rank has to call it: ranks exchange their facts, map rank 0's memory, and use it only if all could map it.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if size == 1:
        return None, "there is only one rank"
    mine = _RankFacts(_machine(), os.getpid(), portable or _obstacle(size), tuning)
    members: list[_RankFacts] = _gathered(mine, group)
    why = _first(f"rank {index}: {member.obstacle}" for index, member in enumerate(members) if member.obstacle)
    if not why and len({member.machine for member in members}) > 1:
        why = "the ranks are on several hosts"
    if why:
        return None, why
    agreed = members[0].tuning
    memory, descriptor, offer = _create(size, agreed) if rank == 0 else (None, -1, None)
    found: list[_MemoryOffer | None] = _gathered(offer, group)
    assert found[0] is not None
    memory, error = (memory, found[0].error) if rank == 0 else _attach(found[0])
    # Every rank takes part, also after an error: the others would wait for it for ever.
    errors: list[str] = _gathered(error, group)
    # Only now have all ranks mapped the memory, whose path leads through rank 0's descriptor.
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
    """Return the boot id, which is the same for two processes under one operating system kernel; "" if unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _obstacle(ranks: int) -> str:
    """Return why this process cannot share memory with ``ranks`` ranks, or an empty text."""
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


def _create(ranks: int, tuning: Tuning) -> tuple[mmap.mmap | None, int, _MemoryOffer]:
    """Create the memory and return it with its descriptor and the offer for the other ranks."""
    size = _TOKEN_SPACE + library().low_latency_bytes(ranks, tuning.chunk)
    descriptor = -1
    try:
        descriptor = os.memfd_create("low_latency_all_reduce")
        # Without this, missing memory would not be an error here but a SIGBUS at the first access.
        os.posix_fallocate(descriptor, 0, size)
        memory = _mapped(descriptor, size)
    except OSError as error:
        reason = f"{size >> 10} KiB of shared memory cannot be allocated: {error.strerror}"
        return None, descriptor, _MemoryOffer("", b"", reason)
    token = secrets.token_bytes(_TOKEN)
    memory[:_TOKEN] = token
    return memory, descriptor, _MemoryOffer(f"/proc/{os.getpid()}/fd/{descriptor}", token)


def _attach(offer: _MemoryOffer) -> tuple[mmap.mmap | None, str]:
    """Map the offered memory and return it, or ``None`` and the reason."""
    if offer.error:
        return None, ""  # rank 0 reports its own error
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
        # In two containers the same process id may stand for two processes.
        memory.close()
        return None, "rank 0's process id stands for another process here, as in another container"
    return memory, ""


def _mapped(descriptor: int, size: int) -> mmap.mmap:
    return mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0))
