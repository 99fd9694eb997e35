"""Two ranks: send and receive, in rings, in batches, and Python objects over collectives."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from conformance.accelerators.capabilities import COMM, COMM_COALESCED, COMM_DTYPE, COMM_P2P, COMM_ROOTED, DTYPE
from conformance.case import case

from .payloads import DTYPES, SIZES, WORLDS, payloads


@case("comm.p2p.ring", requires=[COMM, COMM_P2P, DTYPE, COMM_DTYPE], axes={"dtype": DTYPES, "size": ("1", "256k3")},
      world_size=WORLDS)  # fmt: skip
def test_ring(case, check, device, dtype, size, rank, world_size, group):
    """What goes round a ring is, at every step, what the rank before had."""
    inputs = payloads(case, world_size, SIZES[size], getattr(torch, dtype))
    after, before = (rank + 1) % world_size, (rank - 1) % world_size
    mine = inputs[rank].to(device)

    for step in range(1, world_size + 1):
        taken = torch.zeros_like(mine)
        if rank % 2:
            dist.recv(taken, before)
            dist.send(mine, after)
        else:
            sending = dist.isend(mine, after)
            dist.recv(taken, before)
            sending.wait()
        mine = taken
        check.equal(mine.cpu(), inputs[(rank - step) % world_size], f"after step {step}")


@case("comm.p2p.order", requires=[COMM, COMM_P2P], world_size=2)
def test_order(check, device, rank, group):
    """Messages between two ranks arrive in the order in which they were sent."""
    count = 20
    if rank == 0:
        for number in range(count):
            dist.send(torch.full((3,), float(number), device=device), 1)
        check.that(True, "sent")
        return
    for number in range(count):
        taken = torch.zeros(3, device=device)
        dist.recv(taken, 0)
        check.equal(taken.tolist(), [float(number)] * 3, f"message {number}")


@case("comm.p2p.batch", requires=[COMM, COMM_P2P], world_size=WORLDS)
def test_batch(check, device, rank, world_size, group):
    """Everybody sends to everybody at once; every message comes from whom it says."""
    others = [other for other in range(world_size) if other != rank]
    taken = {other: torch.zeros(5, device=device) for other in others}
    calls = [dist.P2POp(dist.irecv, taken[other], other) for other in others]
    calls += [dist.P2POp(dist.isend, torch.full((5,), 10.0 * rank + o, device=device), o) for o in others]

    for work in dist.batch_isend_irecv(calls):
        work.wait()

    for other in others:
        check.equal(taken[other].tolist(), [10.0 * other + rank] * 5, f"the message of rank {other}")


@case("comm.point-to-point", requires=[COMM_P2P], world_size=2, adaptive=True)
def test_point_to_point_is_there(check, device, rank, group):
    """One rank sends, the other receives."""
    buffer = torch.tensor([7.0 if rank == 0 else 0.0], device=device)

    if rank == 0:
        dist.send(buffer, 1)
    else:
        dist.recv(buffer, 0)

    check.equal(buffer.item(), 7.0, "what both have")


@case("comm.coalesced", requires=[COMM_COALESCED], world_size=WORLDS, adaptive=True)
def test_coalesced(check, device, rank, world_size, group):
    """Several tensors are reduced by one call, each to its own sum."""
    buffers = [torch.full((size,), float(rank + size), device=device) for size in (1, 5, 130)]

    with dist._coalescing_manager(group=group, device=torch.device(device), async_ops=True) as manager:
        for buffer in buffers:
            dist.all_reduce(buffer)
    manager.wait()

    for buffer, size in zip(buffers, (1, 5, 130), strict=True):
        total = float(sum(number + size for number in range(world_size)))
        check.equal(buffer.cpu(), torch.full((size,), total), f"the sum of {size}")


@case("comm.all_reduce.list", requires=[COMM], world_size=WORLDS)
def test_list(check, device, rank, world_size, group):
    """A list of tensors is reduced by one call of the older kind, each to its own sum."""
    buffers = [torch.full((size,), float(rank + size), device=device) for size in (1, 5, 130)]

    dist.all_reduce_coalesced(buffers)

    for buffer, size in zip(buffers, (1, 5, 130), strict=True):
        total = float(sum(number + size for number in range(world_size)))
        check.equal(buffer.cpu(), torch.full((size,), total), f"the sum of {size}")


@case("comm.objects.all_gather", requires=[COMM], world_size=WORLDS)
def test_gathered_objects(check, rank, world_size, group):
    """Python objects of different sizes, in the order of ranks."""
    everyone = [None] * world_size

    dist.all_gather_object(everyone, {"rank": rank, "text": "x" * (10 ** (rank + 1))})

    check.equal([one["rank"] for one in everyone], list(range(world_size)), "ranks in order")
    check.equal([len(one["text"]) for one in everyone], [10 ** (r + 1) for r in range(world_size)], "lengths")


@case("comm.objects.broadcast", requires=[COMM], world_size=WORLDS)
def test_broadcast_objects(check, rank, world_size, group):
    """Every rank gets the root's list."""
    for root in range(world_size):
        objects = [f"from {rank}", {rank}, None]
        dist.broadcast_object_list(objects, root)
        check.equal(objects, [f"from {root}", {root}, None], f"what root {root} had")


@case("comm.objects.rooted", requires=[COMM, COMM_ROOTED], world_size=WORLDS)
def test_rooted_objects(check, rank, world_size, group):
    """The last rank gathers what all have, and deals it out again the other way round."""
    root = world_size - 1
    everyone = [None] * world_size if rank == root else None
    dealt = [None]

    dist.gather_object(f"of {rank}", everyone, root)
    if rank == root:
        check.equal(everyone, [f"of {number}" for number in range(world_size)], "what was gathered")
    dist.scatter_object_list(dealt, everyone[::-1] if rank == root else None, root)

    check.equal(dealt, [f"of {world_size - 1 - rank}"], "what was dealt")


@case("comm.ranks", requires=[COMM], world_size=WORLDS)
def test_ranks(check, rank, world_size, group):
    """Ranks are processes of their own, numbered in order, and draw random numbers of their own."""
    everyone = [None] * world_size
    dist.all_gather_object(everyone, (rank, os.getpid(), torch.rand(1).item()))

    check.equal((dist.get_rank(), dist.get_world_size()), (rank, world_size), "what torch says")
    check.equal([number for number, _, _ in everyone], list(range(world_size)), "ranks in order")
    check.equal(len({process for _, process, _ in everyone}), world_size, "processes")
    check.equal(len({draw for _, _, draw in everyone}), world_size, "different random numbers")
