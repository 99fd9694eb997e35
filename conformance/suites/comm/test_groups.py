"""Cases for groups of ranks: members, their order, and independence of other ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist

from conformance.accelerators.capabilities import COMM
from conformance.plan.case import case

CALLS = ("all_reduce", "broadcast", "all_gather", "reduce_scatter")


def neighbours(rank, world_size):
    """Create disjoint groups of neighbours on all ranks; return the members and the group of this rank."""
    parts = [list(range(first, min(first + 2, world_size))) for first in range(0, world_size, 2)]
    groups = [dist.new_group(part) for part in parts]  # every rank has to create all groups in the same order
    mine = rank // 2
    return parts[mine], groups[mine]


@case("comm.group.disjoint", requires=[COMM], axes={"call": CALLS}, world_size=(3, 4))
def test_disjoint(check, device, call, rank, world_size, group):
    """Disjoint groups run collectives at the same time, each with its own values."""
    members, own = neighbours(rank, world_size)
    mine = torch.full((len(members),), float(rank + 1), device=device)

    if call == "all_reduce":
        dist.all_reduce(mine, group=own)
        expected = [float(sum(m + 1 for m in members))] * len(members)
    elif call == "broadcast":
        dist.broadcast(mine, members[-1], group=own)
        expected = [float(members[-1] + 1)] * len(members)
    elif call == "all_gather":
        gathered = torch.zeros(len(members) * len(members), device=device)
        dist.all_gather_into_tensor(gathered, mine, group=own)
        # Every member has sent equal elements; the first of each is enough.
        mine, expected = gathered[:: len(members)], [float(m + 1) for m in members]
    else:
        part = torch.zeros(1, device=device)
        dist.reduce_scatter_tensor(part, mine, group=own)
        mine, expected = part, [float(sum(m + 1 for m in members))]

    check.equal(mine.cpu().tolist(), expected, f"{call} among {members}")


@case("comm.group.numbers", requires=[COMM], world_size=(3, 4))
def test_numbers(check, rank, world_size, group):
    """A group has its own rank numbers and maps them to global ranks and back."""
    chosen = [world_size - 1, 1]
    small = dist.new_group(chosen)

    if rank not in chosen:
        check.equal(dist.get_rank(small), -1, "get_rank() of a group without this rank")
        return
    inside = dist.get_group_rank(small, rank)
    check.equal(dist.get_rank(small), inside, "this rank's number in the group")
    check.equal(dist.get_global_rank(small, inside), rank, "get_global_rank() of that number")
    check.equal(dist.get_world_size(small), 2, "the size of the group")
    gathered = [None, None]
    dist.all_gather_object(gathered, rank, group=small)
    check.equal(gathered[inside], rank, "this rank's entry in a gathered list")
    check.equal(sorted(map(str, gathered)), sorted(map(str, chosen)), "the gathered ranks")


@case("comm.group.outsider", requires=[COMM], world_size=(3, 4))
def test_outsider(check, device, rank, world_size, group):
    """A collective on a group does not change the tensors of other ranks and does not wait for them."""
    pair = dist.new_group([0, 1])
    mine = torch.full((4,), float(rank + 1), device=device)

    if rank in (0, 1):
        dist.all_reduce(mine, group=pair)

    check.equal(mine.cpu().tolist(), [3.0 if rank in (0, 1) else rank + 1.0] * 4, "the tensor")
    dist.all_reduce(mine)
    check.equal(mine.cpu().tolist(), [6.0 + sum(range(3, world_size + 1))] * 4, "the sum over all ranks after it")


@case("comm.group.overlap", requires=[COMM], world_size=(3, 4))
def test_overlap(check, device, rank, world_size, group):
    """Two groups with a common rank work in turn, with a barrier of all ranks between them."""
    low, high = dist.new_group([0, 1]), dist.new_group([1, 2])
    total = torch.tensor([float(rank + 1)], device=device)

    if rank in (0, 1):
        dist.all_reduce(total, group=low)
    dist.barrier()
    if rank in (1, 2):
        dist.all_reduce(total, group=high)

    check.equal(total.item(), {0: 3.0, 1: 6.0, 2: 6.0}.get(rank, rank + 1.0), "the sum")


@case("comm.group.many", requires=[COMM], world_size=(2,))
def test_many(check, device, rank, world_size, group):
    """Groups can be created, used and destroyed many times."""
    for number in range(12):
        temporary = dist.new_group([0, 1])
        total = torch.tensor([float(number + rank)], device=device)
        dist.all_reduce(total, group=temporary)
        check.equal(total.item(), 2.0 * number + 1, f"the sum in group {number}")
        dist.destroy_process_group(temporary)


@case("comm.group.only_one", requires=[COMM], world_size=2)
def test_only_one(check, device, rank, group):
    """Collectives on a group of one rank change nothing."""
    alone = [dist.new_group([number]) for number in range(2)][rank]
    mine = torch.tensor([rank + 0.5], device=device)

    dist.all_reduce(mine, group=alone)
    dist.broadcast(mine, rank, group=alone)
    dist.barrier(group=alone)
    gathered, scattered = torch.zeros_like(mine), torch.zeros_like(mine)
    dist.all_gather_into_tensor(gathered, mine, group=alone)
    dist.reduce_scatter_tensor(scattered, mine, group=alone)

    check.equal(mine.item(), rank + 0.5, "the tensor")
    check.equal(gathered.item(), rank + 0.5, "the gathered tensor")
    check.equal(scattered.item(), rank + 0.5, "the reduced and scattered tensor")
