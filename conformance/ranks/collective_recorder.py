"""The ledger: which collective a rank is in, in memory that the pool reads.

Nothing has to answer for it to be read: a rank that loops with the GIL held, or is dead, still shows its last entry.
It works with every backend, because the public functions of ``torch.distributed`` write it. Collectives that C++
starts by itself (the reducer of DistributedDataParallel) are not in it.
"""

from __future__ import annotations

import functools
import json
import mmap
import os
import struct
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

SIZE = mmap.PAGESIZE
_HEAD = struct.Struct("<II?")  # generation (odd while it is written), length of the text, inside a call
_LONGEST = 512

_COLLECTIVES = (
    "all_gather", "all_gather_coalesced", "all_gather_into_tensor", "all_gather_object", "all_reduce",
    "all_reduce_coalesced", "all_to_all", "all_to_all_single", "barrier", "broadcast", "broadcast_object_list",
    "gather", "gather_object", "monitored_barrier", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter",
    "scatter_object_list",
)  # fmt: skip
_BETWEEN_TWO = ("send", "recv", "isend", "irecv", "send_object_list", "recv_object_list", "batch_isend_irecv")
_MADE_BY_ALL = ("new_group", "split_group")


@dataclass(frozen=True)
class Entry:
    """A rank's place. ``sequence`` counts the collectives of ``group`` in this round; 0 with a stage that is none."""

    nonce: str = ""
    stage: str = ""
    group: str = ""
    sequence: int = 0
    elements: int | None = None
    dtype: str = ""
    between_two: bool = False
    inside: bool = False

    def __str__(self) -> str:
        if not self.sequence:
            return self.stage or "nowhere"
        size = "" if self.elements is None else f" {self.dtype}[{self.elements}]"
        group = "" if self.group == DEFAULT else f" of group {self.group}"
        return f"{self.stage} #{self.sequence}{size}{group}"


#: The name of the default group, and the stages before a rank is a member of it.
DEFAULT = "default"
ARRIVING, JOINING = "before the body", "joining the group"
#: The stage of a rank between two cases that is a member of the next one's group already.
AHEAD = "in a group ahead"


class Ledger:
    """Written by one rank, read by the pool through another mapping of the same file."""

    def __init__(self, descriptor: int) -> None:
        os.ftruncate(descriptor, SIZE)
        self._memory = mmap.mmap(descriptor, SIZE)
        self._nonce = ""
        self._counts: Counter[str] = Counter()

    def begin(self, nonce: str) -> None:
        self._nonce = nonce
        self._counts.clear()

    def stage(self, name: str) -> None:
        """Say where the rank is outside of collectives."""
        self._write(Entry(self._nonce, name), inside=False)

    def enter(self, name: str, group: str, tensor: Any, *, between_two: bool) -> None:
        self._counts[group] += not between_two
        elements = None if tensor is None else tensor.numel()
        dtype = "" if tensor is None else str(tensor.dtype).removeprefix("torch.")
        sequence = self._counts[group] or 1
        self._write(Entry(self._nonce, name, group, sequence, elements, dtype, between_two), inside=True)

    def leave(self) -> None:
        generation, length, _ = _HEAD.unpack_from(self._memory)
        _HEAD.pack_into(self._memory, 0, generation, length, False)

    def read(self) -> Entry:
        """The newest entry. A rank that is stopped in the middle of writing one shows an empty one."""
        for _ in range(100):
            generation, length, inside = _HEAD.unpack_from(self._memory)
            text = bytes(self._memory[_HEAD.size : _HEAD.size + min(length, _LONGEST)])
            if generation % 2 == 0 and _HEAD.unpack_from(self._memory)[0] == generation:
                return Entry(**{**json.loads(text), "inside": inside}) if text else Entry()
        return Entry()

    def close(self) -> None:
        self._memory.close()

    def _write(self, entry: Entry, *, inside: bool) -> None:
        text = json.dumps(vars(entry)).encode()
        if len(text) > _LONGEST:
            return
        generation, _, _ = _HEAD.unpack_from(self._memory)
        _HEAD.pack_into(self._memory, 0, generation + 1, 0, False)
        self._memory[_HEAD.size : _HEAD.size + len(text)] = text
        _HEAD.pack_into(self._memory, 0, generation + 2, len(text), inside)


_open: Ledger | None = None
_depth = 0


def open_ledger(ledger: Ledger) -> None:
    """From now on this process writes its collectives there."""
    global _open
    _open = ledger


def record_collectives() -> None:
    """Have the public functions of ``torch.distributed`` write the ledger. Before any case is imported."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    for names, between_two in ((_COLLECTIVES + _MADE_BY_ALL, False), (_BETWEEN_TWO, True)):
        for name in names:
            function = getattr(dist, name, None)
            if function is not None:
                recorded = _recorded(name, function, between_two=between_two)
                # In both, because P2POp asks whether what it is given *is* isend or irecv.
                setattr(dist, name, recorded)
                setattr(distributed_c10d, name, recorded)


def _recorded(name: str, function: Callable[..., Any], *, between_two: bool) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        global _depth
        if _open is None or _depth:  # a collective that is made of others counts once
            return function(*args, **kwargs)
        _depth = 1
        try:
            values = (*args, *kwargs.values())
            _open.enter(name, _group_of(name, values), _tensor_of(values), between_two=between_two)
            return function(*args, **kwargs)
        finally:
            _depth = 0
            _open.leave()

    return call


def _group_of(name: str, values: Iterable[Any]) -> str:
    import torch.distributed as dist

    world = dist.group.WORLD
    for value in values:
        if isinstance(value, dist.ProcessGroup) and value is not world and name not in _MADE_BY_ALL:
            return str(value.group_name)
    return DEFAULT


def _tensor_of(values: Iterable[Any]) -> Any:
    import torch

    for value in values:
        if isinstance(value, torch.Tensor):
            return value
        if isinstance(value, (list, tuple)) and value and isinstance(value[0], torch.Tensor):
            return value[0]
    return None


def proven_mismatch(places: dict[int, Entry], left: dict[int, Entry]) -> str | None:
    """Why ranks can never come together, or None where that is not certain.

    ``places`` are the entries of the ranks that have not ended, ``left`` the last ones of those that have. It is
    certain only if every rank that has not ended stands in a collective, and two of them are at the same number of one
    group in different calls, or one stands in a call that a rank of the default group has left without.
    """
    if not places or not all(entry.inside and entry.sequence and not entry.between_two for entry in places.values()):
        return None
    for rank, entry in sorted(places.items()):
        for other, theirs in sorted(places.items()):
            if other > rank and entry.group == theirs.group and _differ(entry, theirs):
                return f"rank {rank} is in {entry}, rank {other} in {theirs}"
        for other, last in sorted(left.items()):
            if entry.group == DEFAULT and last.sequence < entry.sequence and last.group in ("", DEFAULT):
                after = f" after {last}" if last.sequence else ""
                return f"rank {rank} is in {entry}, rank {other} has ended its body{after}"
    return None


_SAME_SIZE = frozenset({"all_reduce", "broadcast", "reduce"})


def _differ(one: Entry, other: Entry) -> bool:
    if one.sequence != other.sequence:
        return False
    return one.stage != other.stage or (one.stage in _SAME_SIZE and one.elements != other.elements)
