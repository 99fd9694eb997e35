"""Recorder of collectives: it notes which collective a rank is in, in memory that the pool reads.

The rank need not answer: a rank that loops while it holds the GIL, or that is dead, still shows its last record. The
recorder works with every backend, because it observes the public functions of ``torch.distributed``: each is called
with the arguments that the case gave it. Collectives that C++ starts by itself (the reducer of DistributedDataParallel)
are not recorded.
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
#: Generation (odd while the record is written), length of the text, and whether the rank is inside a call.
_HEAD = struct.Struct("<II?")
#: Bytes of JSON. With its head, a record has to fit into one page.
_LONGEST_TEXT = 512

_COLLECTIVES = (
    "all_gather", "all_gather_coalesced", "all_gather_into_tensor", "all_gather_object", "all_reduce",
    "all_reduce_coalesced", "all_to_all", "all_to_all_single", "barrier", "broadcast", "broadcast_object_list",
    "gather", "gather_object", "monitored_barrier", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter",
    "scatter_object_list",
)  # fmt: skip
_POINT_TO_POINT = ("send", "recv", "isend", "irecv", "send_object_list", "recv_object_list", "batch_isend_irecv")
_GROUP_MAKERS = ("new_group", "split_group")


@dataclass(frozen=True)
class CollectiveRecord:
    """Position of a rank.

    ``sequence`` counts the collectives of ``group`` in this execution. It is 0 where ``stage`` names a step that is no
    collective.
    """

    nonce: str = ""
    stage: str = ""
    group: str = ""
    sequence: int = 0
    elements: int | None = None
    dtype: str = ""
    point_to_point: bool = False
    inside: bool = False

    def __str__(self) -> str:
        if not self.sequence:
            return self.stage or "nowhere"
        size = "" if self.elements is None else f" {self.dtype}[{self.elements}]"
        group = "" if self.group == DEFAULT else f" of group {self.group}"
        return f"{self.stage} #{self.sequence}{size}{group}"


#: Name of the default group.
DEFAULT = "default"
#: Stages before a rank is a member of the group.
ARRIVING, JOINING = "before the body", "joining the group"


class CollectiveRecorder:
    """Record in shared memory. One rank writes it; the pool reads it through another mapping of the same file."""

    def __init__(self, descriptor: int) -> None:
        os.ftruncate(descriptor, SIZE)
        self._memory = mmap.mmap(descriptor, SIZE)
        self._nonce = ""
        self._counts: Counter[str] = Counter()

    def begin(self, nonce: str) -> None:
        """Start the records of one execution; sequence numbers begin at 1 again."""
        self._nonce = nonce
        self._counts.clear()

    def stage(self, name: str) -> None:
        """Record a step outside of collectives."""
        self._write(CollectiveRecord(self._nonce, name), inside=False)

    def enter(self, name: str, group: str, tensor: Any, *, point_to_point: bool) -> None:
        """Record that the rank calls a collective, with the size and dtype of its first tensor."""
        # Only some ranks make a point-to-point call, so counting it would shift their numbers against the others.
        self._counts[group] += not point_to_point
        elements = None if tensor is None else tensor.numel()
        dtype = "" if tensor is None else str(tensor.dtype).removeprefix("torch.")
        sequence = self._counts[group] or 1
        self._write(CollectiveRecord(self._nonce, name, group, sequence, elements, dtype, point_to_point), inside=True)

    def leave(self) -> None:
        """Record that the rank has returned from the collective."""
        # The text stays: a rank that has left a collective still shows which one it was.
        generation, length, _ = _HEAD.unpack_from(self._memory)
        _HEAD.pack_into(self._memory, 0, generation, length, False)

    def read(self) -> CollectiveRecord:
        """Return the newest record. A rank that was stopped while it wrote one shows an empty record."""
        # A bound, because a rank that died while it wrote leaves an odd generation for ever.
        for _ in range(100):
            generation, length, inside = _HEAD.unpack_from(self._memory)
            text = bytes(self._memory[_HEAD.size : _HEAD.size + min(length, _LONGEST_TEXT)])
            # The text is whole only if no write began or ended while it was copied.
            if generation % 2 == 0 and _HEAD.unpack_from(self._memory)[0] == generation:
                return CollectiveRecord(**{**json.loads(text), "inside": inside}) if text else CollectiveRecord()
        return CollectiveRecord()

    def close(self) -> None:
        """Unmap the memory."""
        self._memory.close()

    def _write(self, record: CollectiveRecord, *, inside: bool) -> None:
        """Write the record under the next even generation. An odd one tells a reader that a write is under way."""
        text = json.dumps(vars(record)).encode()
        # Too long for the shared memory. The reader keeps the earlier record, which beats a cut text.
        if len(text) > _LONGEST_TEXT:
            return
        generation, _, _ = _HEAD.unpack_from(self._memory)
        _HEAD.pack_into(self._memory, 0, generation + 1, 0, False)
        self._memory[_HEAD.size : _HEAD.size + len(text)] = text
        _HEAD.pack_into(self._memory, 0, generation + 2, len(text), inside)


_recorder: CollectiveRecorder | None = None
#: Depth of nested recorded calls: a collective that is made of others counts once.
_depth = 0


def record_to(recorder: CollectiveRecorder) -> None:
    """Let this process write its collectives to ``recorder`` from now on."""
    global _recorder
    _recorder = recorder


def record_collectives() -> None:
    """Let the public functions of ``torch.distributed`` record their calls. Call it before any case is imported."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    for names, point_to_point in ((_COLLECTIVES + _GROUP_MAKERS, False), (_POINT_TO_POINT, True)):
        for name in names:
            function = getattr(dist, name, None)
            if function is not None:
                recorded = _recorded(name, function, point_to_point=point_to_point)
                # In both modules, because P2POp asks whether its function *is* isend or irecv.
                setattr(dist, name, recorded)
                setattr(distributed_c10d, name, recorded)


def _recorded(name: str, function: Callable[..., Any], *, point_to_point: bool) -> Callable[..., Any]:
    """Return ``function`` with a record of each call; arguments, result and exceptions pass through."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        """Call the collective and record it; a collective that it calls in turn is not recorded."""
        global _depth
        if _recorder is None or _depth:
            return function(*args, **kwargs)
        _depth = 1
        try:
            values = (*args, *kwargs.values())
            _recorder.enter(name, _group_of(name, values), _tensor_of(values), point_to_point=point_to_point)
            return function(*args, **kwargs)
        finally:
            _depth = 0
            _recorder.leave()

    return call


def _group_of(name: str, values: Iterable[Any]) -> str:
    """Return the name of the group among the arguments of a call."""
    import torch.distributed as dist

    world = dist.group.WORLD
    for value in values:
        if isinstance(value, dist.ProcessGroup) and value is not world and name not in _GROUP_MAKERS:
            return str(value.group_name)
    return DEFAULT


def _tensor_of(values: Iterable[Any]) -> Any:
    """Return the first tensor among the arguments of a call, or None."""
    import torch

    for value in values:
        if isinstance(value, torch.Tensor):
            return value
        if isinstance(value, (list, tuple)) and value and isinstance(value[0], torch.Tensor):
            return value[0]
    return None


def prove_mismatch(running: dict[int, CollectiveRecord], ended: dict[int, CollectiveRecord]) -> str | None:
    """Return why the ranks can never meet in a collective, or None where that is not certain.

    ``running`` holds the records of ranks whose body still runs, ``ended`` the last records of the others. A mismatch
    is certain only if every running rank is inside a collective, and one of these holds: two ranks are at the same
    sequence number of one group in different calls; or one rank is in a call of the default group that another rank
    has ended without.
    """
    if not running or not all(
        record.inside and record.sequence and not record.point_to_point for record in running.values()
    ):
        return None
    for rank, record in sorted(running.items()):
        for peer, theirs in sorted(running.items()):
            if peer > rank and record.group == theirs.group and _differ(record, theirs):
                return f"rank {rank} is in {record}, rank {peer} in {theirs}"
        for peer, last in sorted(ended.items()):
            if record.group == DEFAULT and last.sequence < record.sequence and last.group in ("", DEFAULT):
                after = f" after {last}" if last.sequence else ""
                return f"rank {rank} is in {record}, rank {peer} has ended its body{after}"
    return None


#: Collectives whose tensors have the same size on every rank.
_SAME_SIZE = frozenset({"all_reduce", "broadcast", "reduce"})


def _differ(left: CollectiveRecord, right: CollectiveRecord) -> bool:
    """Tell whether two records with the same sequence number are of different calls."""
    if left.sequence != right.sequence:
        return False
    return left.stage != right.stage or (left.stage in _SAME_SIZE and left.elements != right.elements)
