"""Cases for sizes, places and orders: every collective at the sizes where implementations change their algorithm."""

from __future__ import annotations

import functools

import torch
import torch.distributed as dist

from conformance.accelerators.capabilities import COMM, COMM_ALL_TO_ALL
from conformance.plan.case import case

from .payloads import BETWEEN
from .test_order import started

LARGE = 1 << 18
#: Elements of the longest message: of the largest size, to each of three ranks.
_LONGEST = 3 * (4 * LARGE + 3)
#: The calls, and what they require beside a process group.
CALLS = {
    "all_reduce": (),
    "broadcast": (),
    "all_gather": (),
    "reduce_scatter": (),
    "all_to_all": (COMM_ALL_TO_ALL,),
}


def sizes(world_size):
    """Return numbers of elements for each rank: around the number of ranks, around 2^18, between, and beyond 2^20."""
    return (1, world_size - 1, world_size, world_size + 1, 13, *BETWEEN, LARGE - 1, LARGE, LARGE + 1, 4 * LARGE + 3, 0)


def sent(rank, size):
    """Return what a rank sends: integers, whose sums over four ranks are exact in float32 and bfloat16 products."""
    return _pattern()[:size] * (rank + 1)


@functools.cache
def _pattern():
    """Return 1 to 61 again and again, for the most that a rank sends."""
    return (torch.arange(_LONGEST) % 61 + 1).float()


def expected(call, rank, world_size, size):
    """Return the result of a call on this rank; ``size`` are the elements that each rank sends to each other."""
    whole = [sent(source, size * world_size if call in ("reduce_scatter", "all_to_all") else size)
             for source in range(world_size)]  # fmt: skip
    if call == "all_reduce":
        return torch.stack(whole).sum(0)
    if call == "broadcast":
        return whole[-1]
    if call == "all_gather":
        return torch.cat(whole)
    parts = [row[rank * size : (rank + 1) * size] for row in whole]
    return torch.stack(parts).sum(0) if call == "reduce_scatter" else torch.cat(parts)


def run(call, mine, result, world_size, group=None):
    """Run a call from ``mine`` into ``result``; reductions and broadcasts copy ``mine`` there first."""
    if call in ("all_reduce", "broadcast"):
        result.copy_(mine)
    if call == "all_reduce":
        dist.all_reduce(result, group=group)
    elif call == "broadcast":
        dist.broadcast(result, world_size - 1, group=group)
    elif call == "all_gather":
        dist.all_gather_into_tensor(result, mine, group=group)
    elif call == "reduce_scatter":
        dist.reduce_scatter_tensor(result, mine, group=group)
    else:
        dist.all_to_all_single(result, mine, group=group)


def given(call, rank, world_size, size):
    """Return what this rank gives to a call."""
    return sent(rank, size * world_size if call in ("reduce_scatter", "all_to_all") else size)


@case("comm.sizes", requires=[COMM], axes={"call": CALLS}, world_size=(2, 3))
def test_sizes(check, device, call, rank, world_size, group):
    """A collective is exact at sizes from none to beyond 2^20, around the number of ranks, around 2^18 and between."""
    for size in sizes(world_size):
        exact = expected(call, rank, world_size, size)
        result = torch.full(exact.shape, -1.0, device=device)

        run(call, given(call, rank, world_size, size).to(device), result, world_size)

        check.equal(result.cpu(), exact, f"{call} of {size} elements")
    # The same call with other numbers of dimensions behind each other.
    for shape in ((12,), (3, 4), (12,), (3, 2, 2), (3, 4)):
        exact, mine = expected(call, rank, world_size, 12), given(call, rank, world_size, 12)
        result = torch.full(exact.shape, -1.0, device=device).view(-1, *shape[1:])

        run(call, mine.to(device).view(-1, *shape[1:]), result, world_size)

        check.equal(result.cpu().flatten(), exact, f"{call} of {shape} from each rank")


@case("comm.offset", requires=[COMM], axes={"call": CALLS}, world_size=(2, 3))
def test_offset(check, device, call, rank, world_size, group):
    """A collective on views that begin inside a storage reads and writes these elements alone."""
    for size in (129, 4099):  # a library may send a short message in another way
        _check_offset(check, device, call, rank, world_size, size)


def _check_offset(check, device, call, rank, world_size, size):
    """Check a call on views of this many elements, and what stands around them."""
    exact, source = expected(call, rank, world_size, size), given(call, rank, world_size, size)
    before = torch.full((source.numel() + 12,), 1000.0, device=device)
    around = torch.full((exact.numel() + 12,), 2000.0, device=device)
    mine, result = before[5 : 5 + source.numel()], around[7 : 7 + exact.numel()]
    mine.copy_(source)

    run(call, mine, result, world_size)

    check.equal(result.cpu(), exact, f"the result of {call} in a view of {size}")
    check.equal(before.cpu(), torch.cat([torch.full((5,), 1000.0), source, torch.full((7,), 1000.0)]), "the input")
    edges = torch.cat([around[:7], around[7 + exact.numel() :]]).cpu()
    check.equal(edges, torch.full((12,), 2000.0), "elements before and after the result")


#: Orders of a list of ranks for a group of all ranks.
ORDERS = {"reversed": (2, 1, 0), "rotated": (1, 2, 0)}


@case("comm.group.order", requires=[COMM, COMM_ALL_TO_ALL], axes={"order": tuple(ORDERS), "call": tuple(CALLS)},
      world_size=3)  # fmt: skip
def test_order_of_a_group(check, device, order, call, rank, world_size, group):
    """A collective in a group that was made from ranks in another order follows the group's own numbers."""
    ordered = dist.new_group(list(ORDERS[order]))
    place = dist.get_rank(ordered)
    members = [dist.get_global_rank(ordered, number) for number in range(world_size)]
    size = 5
    exact = expected(call, place, world_size, size)
    result = torch.full(exact.shape, -1.0, device=device)

    mine = given(call, place, world_size, size).to(device)
    if call == "broadcast":
        result.copy_(mine)
        dist.broadcast(result, members[-1], group=ordered)
    else:
        run(call, mine, result, world_size, ordered)

    check.equal(sorted(members), list(range(world_size)), "the members of the group")
    check.equal(members[place], rank, "the global rank of this rank's number in the group")
    check.equal(result.cpu(), exact, f"{call} in the group of {members}")


#: Orders in which four handles are waited for.
WAITS = {"reversed": (3, 2, 1, 0), "crossed": (2, 0, 3, 1), "last-first": (3, 0, 1, 2)}


@case("comm.async.mixed", requires=[COMM], axes={"order": tuple(WAITS)}, world_size=(2, 3))
def test_mixed_handles(check, device, order, rank, world_size, group):
    """Four different collectives in flight are right, in whatever order their handles are waited for."""
    calls = ("all_reduce", "broadcast", "all_gather", "reduce_scatter")
    flying = []
    for number, call in enumerate(calls):
        mine = torch.full((12 * (number + 1),), rank + 1.0, device=device)
        flying.append((mine, *started(call, mine, rank, world_size)))

    for number in WAITS[order]:
        _, work, result, right = flying[number]
        work.wait()
        check.equal((result + 1).cpu().tolist(), [value + 1 for value in right], f"{calls[number]}, waited for {order}")
