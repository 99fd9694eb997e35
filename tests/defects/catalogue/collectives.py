"""Defects of collectives. They go through a real run, in which every rank breaks the accelerator that it loads."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist

from conformance.accelerators.claims import communicates
from conformance.reports.verdict import Reason
from tests.defects.faults import Fault, Where
from tests.defects.mutant import How, Mutant
from tests.defects.spoiling import replaced

MISSING_RANK = "all-reduce missing a rank, average without division, wrong op for max"
GROUPS = "sub-group rank mapping"
#: A call that every mutant's ranks make besides, and that must stay right.
INNOCENT = "comm.objects.broadcast[2]"
Context = Callable[[], AbstractContextManager[Any]]


def broken(name: str, family: str, precedent: str, caught_by: str, context: Context | None = None, *also: str,
           switches: dict[str, float] | None = None, reason: Reason | None = None) -> Mutant:  # fmt: skip
    what = Fault(name, family, precedent, Where.COLLECTIVE, caught_by, switches=switches or {}, context=context)
    return Mutant(what, also, (caught_by, INNOCENT), reason=reason, how=How.PYTEST)


def before(change: Callable[..., None]) -> Callable[[Any], Any]:
    """``change(tensor)`` spoils the input of a collective."""

    def around(old: Any) -> Any:
        def call(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            change(tensor)
            return old(tensor, *args, **kwargs)

        return call

    return around


def after(change: Callable[..., None]) -> Callable[[Any], Any]:
    """``change(output, *args)`` spoils what a collective that has been waited for has written."""

    def around(old: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            work = old(*args, **kwargs)
            if work is not None:
                work.wait()
            change(*args)
            return work

        return call

    return around


def instead(op: Any, other: Any) -> Callable[[Any], Any]:
    """Reductions with ``op`` are done with ``other``."""

    def around(old: Any) -> Any:
        def call(tensor: Any, op_asked: Any = dist.ReduceOp.SUM, *args: Any, **kwargs: Any) -> Any:
            return old(tensor, other if op_asked == op else op_asked, *args, **kwargs)

        return call

    return around


def _last_rank_gives_nothing(tensor: Any) -> None:
    if dist.get_rank() == dist.get_world_size() - 1:
        tensor.zero_()


def _holds_its_input(old: Any) -> Any:
    held: list[Any] = []

    def call(output: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        held.append(tensor)
        return old(output, tensor, *args, **kwargs)

    return call


def _keeps_last_element(old: Any) -> Any:
    def call(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        last = tensor.flatten()[-1:].clone()
        work = old(tensor, *args, **kwargs)
        if tensor.numel() > 1:
            tensor.view(-1)[-1:] = last
        return work

    return call


def _stops_at_32_mib(old: Any) -> Any:
    def call(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        most = (32 << 20) // tensor.element_size()
        return old(tensor if tensor.numel() <= most else tensor.view(-1)[:most], *args, **kwargs)

    return call


def _truncates(old: Any) -> Any:
    """Adds in float32 and cuts the last 16 bits off."""

    def call(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if tensor.dtype is not torch.bfloat16:
            return old(tensor, *args, **kwargs)
        wide = tensor.float()
        work = old(wide, *args, **kwargs)
        tensor.copy_((wide.cpu().view(torch.int32) & -65536).view(torch.float32))
        return work

    return call


def _rounds_by_rank(tensor: Any, *_: Any) -> None:
    if tensor.is_floating_point() and dist.get_rank() == 1:
        tensor.mul_(1 + torch.finfo(tensor.dtype).eps)


def _next_root(old: Any) -> Any:
    def call(tensor: Any, src: int = 0, *args: Any, **kwargs: Any) -> Any:
        return old(tensor, (src + 1) % dist.get_world_size(), *args, **kwargs)

    return call


def _first_of_group(old: Any) -> Any:
    def call(tensor: Any, src: int = 0, group: Any = None, **kwargs: Any) -> Any:
        return old(tensor, dist.get_global_rank(group, 0) if group else src, group=group, **kwargs)

    return call


def _ignores_group(old: Any) -> Any:
    def call(tensor: Any, op: Any = dist.ReduceOp.SUM, group: Any = None, **kwargs: Any) -> Any:
        del group
        return old(tensor, op, **kwargs)

    return call


def _reverses(parts: Any, *_: Any) -> None:
    parts.reverse()


def _mirrored(old: Any) -> Any:
    """As if the group had numbered its members from the other end."""

    def call(output: Any, mine: Any, group: Any = None, **kwargs: Any) -> Any:
        work = old(output, mine, group=group, **kwargs)
        if group is not None:
            output.copy_(output.view(-1, mine.numel()).flip(0).flatten())
        return work

    return call


def _neighbours_slice(old: Any) -> Any:
    def call(output: Any, source: Any, *args: Any, **kwargs: Any) -> Any:
        return old(output, source.roll(output.numel()), *args, **kwargs)

    return call


def _drops_remainder(output: Any, *_: Any) -> None:
    output[output.numel() // 4 * 4 :] = 0


def _rows_backwards(output: Any, *_: Any) -> None:
    output.copy_(output.flip(0).clone())


def _loses_last(tensor: Any, *_: Any) -> None:
    tensor.view(-1)[-1:] = 0


def _swaps_messages(old: Any) -> Any:
    """What two ranks have sent at once is put into each other's tensors."""

    def call(calls: Any) -> Any:
        works = old(calls)
        for work in works:
            work.wait()
        taken = [one.tensor for one in calls if one.op is dist.irecv]
        values = [tensor.clone() for tensor in taken]
        for tensor, value in zip(taken, reversed(values), strict=True):
            tensor.copy_(value)
        return works

    return call


def _everybody_is_me(objects: Any, mine: Any, *_: Any) -> None:
    objects[:] = [mine] * len(objects)


def _nothing(old: Any) -> Any:
    del old
    return lambda *args, **kwargs: None


def _stays_away(old: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        return old(*args, **kwargs) if dist.get_rank() else None

    return call


CLAIMS = Mutant(
    Fault("claims that collectives carry int16", "over-declared", "DeepSpeed CCL backend: unknown dtypes sent as int8",
          Where.DECLARATION, "comm.dtype[int16]"),
    (), (INNOCENT,), communicates("int16"), how=How.PYTEST,
)  # fmt: skip

MUTANTS = (
    broken("all-reduce misses the last rank", MISSING_RANK, "DeepSpeed 5999fb069: gradients not averaged",
           "comm.all_reduce[sum-float32-13-2]", replaced(dist, all_reduce=before(_last_rank_gives_nothing))),
    broken("average does not divide", MISSING_RANK, "DeepSpeed 5999fb069: gradients not averaged",
           "comm.all_reduce.avg[float32-13-2]",
           replaced(dist, all_reduce=instead(dist.ReduceOp.AVG, dist.ReduceOp.SUM))),
    broken("max is a sum", MISSING_RANK, "DeepSpeed interface: inference_all_reduce ignores op",
           "comm.all_reduce[max-float32-13-2]",
           replaced(dist, all_reduce=instead(dist.ReduceOp.MAX, dist.ReduceOp.SUM))),
    broken("min is a max", MISSING_RANK, "DeepSpeed interface: inference_all_reduce ignores op",
           "comm.all_reduce[min-int64-13-3]",
           replaced(dist, all_reduce=instead(dist.ReduceOp.MIN, dist.ReduceOp.MAX))),
    broken("all-reduce leaves the last element", "last tile not computed", "DeepSpeed #8158: remainders",
           "comm.all_reduce[sum-float32-256k3-2]", replaced(dist, all_reduce=_keeps_last_element)),
    broken("all-reduce stops at 32 MiB", "last tile not computed", "DeepSpeed shm.cpp: a loop of 32 MiB chunks",
           "comm.all_reduce.huge[float32-2]", replaced(dist, all_reduce=_stops_at_32_mib)),
    broken("bfloat16 sums are cut off", "low-precision accumulation", "DeepSpeed shm.cpp: rounding of halves",
           "comm.all_reduce.accumulation[bfloat16-2]", replaced(dist, all_reduce=_truncates)),
    broken("ranks round differently", MISSING_RANK, "DeepSpeed #7580: ranks disagree",
           "comm.all_reduce[sum-float32-13-3]", replaced(dist, all_reduce=after(_rounds_by_rank)),
           reason=Reason.DISAGREEMENT),
    broken("a rank stays away", MISSING_RANK, "DeepSpeed #4048: a collective hangs",
           "comm.all_reduce[sum-float64-13-2]", replaced(dist, all_reduce=_stays_away)),
    broken("broadcast comes from the next root", "broadcast from the wrong root", "DeepSpeed #4115",
           "comm.broadcast[float32-1-2]", replaced(dist, broadcast=_next_root)),
    broken("all-gather comes in reverse order", "all-gather order", "DeepSpeed history: chunks in another order",
           "comm.all_gather[float32-1-2]", replaced(dist, all_gather=after(_reverses))),
    broken("all-gather of a new group is mirrored", GROUPS, "DeepSpeed history: wrong order after new_group",
           "comm.group.disjoint[all_gather-4]", replaced(dist, all_gather_into_tensor=_mirrored)),
    broken("all-reduce ignores its group", GROUPS, "DeepSpeed TorchBackend: inference_all_reduce uses the world",
           "comm.group.disjoint[all_reduce-4]", replaced(dist, all_reduce=_ignores_group)),
    broken("broadcast in a group comes from its first rank", GROUPS, "DeepSpeed history: ranks of groups",
           "comm.group.disjoint[broadcast-4]", replaced(dist, broadcast=_first_of_group)),
    broken("reduce-scatter gives the neighbour's slice", "reduce-scatter remainder", "DeepSpeed #7489: uneven shards",
           "comm.reduce_scatter[float32-1-3]", replaced(dist, reduce_scatter_tensor=_neighbours_slice)),
    broken("reduce-scatter drops the remainder", "reduce-scatter remainder", "DeepSpeed #8158: strides of shards",
           "comm.reduce_scatter[float32-256k3-2]", replaced(dist, reduce_scatter_tensor=after(_drops_remainder))),
    broken("uneven rows come the other way round", "all-gather order", "DeepSpeed history: transposed splits",
           "comm.all_to_all.uneven[none-3]", replaced(dist, all_to_all_single=after(_rows_backwards))),
    broken("a message loses its last element", "p2p mix-up", "DeepSpeed pipe engine: partial activations",
           "comm.p2p.ring[float32-1-2]", replaced(dist, recv=after(_loses_last))),
    broken("messages at once are mixed up", "p2p mix-up", "DeepSpeed pipe engine: partial activations",
           "comm.p2p.batch[3]", replaced(dist, batch_isend_irecv=_swaps_messages)),
    broken("gathered objects are all one's own", "all-gather order", "DeepSpeed history: chunks in another order",
           "comm.objects.all_gather[2]", replaced(dist, all_gather_object=after(_everybody_is_me))),
    broken("all-gather holds what went in", "memory that stays allocated",
           "the simulator itself: finished work of gloo kept its tensors and its group",
           "comm.memory[all_gather]", replaced(dist, all_gather_into_tensor=_holds_its_input)),
    broken("a barrier holds nobody", "no-op barrier", "DeepSpeed CCL backend: handles that wait for nothing",
           "comm.barrier[2]", replaced(dist, barrier=_nothing)),
    broken("a list that does not fit is accepted", "unclean refusal", "DeepSpeed CCL backend: silent returns",
           "comm.refusal.shape[reduce_scatter]", replaced(dist, reduce_scatter=_nothing)),
    broken("work.wait() orders nothing", "stale or missing sync", "DeepSpeed CCL backend: wait() is a no-op",
           "comm.stream.wait[all_reduce-2]", None, "comm.async*", switches={"comm_wait_ignored": 1}),
    CLAIMS,
)  # fmt: skip
