"""Cases for point-to-point messages, coalesced calls and collectives of Python objects."""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist

from conformance.accelerators.capabilities import (
    COMM,
    COMM_COALESCED,
    COMM_DTYPE,
    COMM_P2P,
    COMM_ROOTED,
    COMM_TAGS,
    DTYPE,
)
from conformance.plan.case import case

from .payloads import DTYPES, MOVED, SIZES, WORLDS, payloads


@case("comm.p2p.ring", requires=[COMM, COMM_P2P, DTYPE, COMM_DTYPE], axes={"dtype": DTYPES, "size": ("1", "256k3")},
      world_size=WORLDS)  # fmt: skip
def test_ring(case, check, device, dtype, size, rank, world_size, group):
    """Each step around a ring delivers the previous rank's tensor."""
    inputs = payloads(case, world_size, SIZES[size], getattr(torch, dtype), MOVED)
    after, before = (rank + 1) % world_size, (rank - 1) % world_size
    mine = inputs[rank].to(device)

    for step in range(1, world_size + 1):
        received = torch.zeros_like(mine)
        # Odd ranks receive first; even ranks send without blocking: a ring of blocking sends would deadlock.
        if rank % 2:
            dist.recv(received, before)
            dist.send(mine, after)
        else:
            sending = dist.isend(mine, after)
            dist.recv(received, before)
            sending.wait()
        mine = received
        check.equal(mine.cpu(), inputs[(rank - step) % world_size], f"after step {step}")


@case("comm.p2p.order", requires=[COMM, COMM_P2P], world_size=2)
def test_order(check, device, rank, group):
    """Messages between two ranks arrive in the order in which they were sent."""
    count = 20
    if rank == 0:
        for number in range(count):
            dist.send(torch.full((3,), float(number), device=device), 1)
        check.that(True, "sent")  # the sender has nothing to compare
        return
    for number in range(count):
        received = torch.zeros(3, device=device)
        dist.recv(received, 0)
        check.equal(received.cpu().tolist(), [float(number)] * 3, f"message {number}")


@case("comm.p2p.tags", requires=[COMM, COMM_P2P, COMM_TAGS], axes={"receive": ("blocking", "asynchronous")},
      world_size=WORLDS)  # fmt: skip
def test_tags(check, device, receive, rank, world_size, group):
    """Messages of several sizes, sent in one order, arrive by their tags in other orders."""
    sizes = {7: 3, 0: 65539, 11: 1, 5: 1025}
    after, before = (rank + 1) % world_size, (rank - 1) % world_size
    orders = ((7, 0, 11, 5), (5, 11, 0, 7), (0, 5, 7, 11))

    def message(sender, tag, turn):
        return (
            torch.arange(sizes[tag], dtype=torch.float32) % 1021 + 10_000.0 * sender + 100_000.0 * tag + 2000.0 * turn
        )

    for turn, order in enumerate(orders):
        sent = [(message(rank, tag, turn).to(device), tag) for tag in sizes]
        works = [dist.isend(tensor, after, tag=tag) for tensor, tag in sent]
        received = {tag: torch.zeros(sizes[tag], device=device) for tag in order}
        if receive == "blocking":
            for tag in order:
                dist.recv(received[tag], before, tag=tag)
        else:
            works += [dist.irecv(received[tag], before, tag=tag) for tag in order]
        for work in works:
            work.wait()

        for tag in order:
            check.equal(
                received[tag].cpu(), message(before, tag, turn), f"the message with tag {tag}, received as {order}"
            )


@case("comm.p2p.batch", requires=[COMM, COMM_P2P], world_size=WORLDS)
def test_batch(check, device, rank, world_size, group):
    """A batch of sends and receives between all ranks delivers every message to the right rank."""
    peers = [number for number in range(world_size) if number != rank]
    received = {peer: torch.zeros(5, device=device) for peer in peers}
    calls = [dist.P2POp(dist.irecv, received[peer], peer) for peer in peers]
    calls += [dist.P2POp(dist.isend, torch.full((5,), 10.0 * rank + peer, device=device), peer) for peer in peers]

    for work in dist.batch_isend_irecv(calls):
        work.wait()

    for peer in peers:
        check.equal(received[peer].cpu().tolist(), [10.0 * peer + rank] * 5, f"the message of rank {peer}")


@case("comm.point-to-point", requires=[COMM_P2P], world_size=2, adaptive=True)
def test_point_to_point_is_there(check, device, rank, group):
    """One rank sends a tensor and the other rank receives it."""
    buffer = torch.tensor([7.0 if rank == 0 else 0.0], device=device)

    if rank == 0:
        dist.send(buffer, 1)
    else:
        dist.recv(buffer, 0)

    check.equal(buffer.item(), 7.0, "the value on both ranks")


@case("comm.coalesced", requires=[COMM_COALESCED], world_size=WORLDS, adaptive=True)
def test_coalesced(check, device, rank, world_size, group):
    """One coalesced call reduces several tensors, each to its own sum."""
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
    """all_reduce_coalesced, the older call, reduces each tensor of a list to its own sum."""
    buffers = [torch.full((size,), float(rank + size), device=device) for size in (1, 5, 130)]

    dist.all_reduce_coalesced(buffers)

    for buffer, size in zip(buffers, (1, 5, 130), strict=True):
        total = float(sum(number + size for number in range(world_size)))
        check.equal(buffer.cpu(), torch.full((size,), total), f"the sum of {size}")


@case("comm.objects.all_gather", requires=[COMM], world_size=WORLDS)
def test_gathered_objects(check, rank, world_size, group):
    """all_gather_object returns objects of different sizes in rank order."""
    gathered = [None] * world_size

    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * (10 ** (rank + 1))})

    check.equal([message["rank"] for message in gathered], list(range(world_size)), "ranks in order")
    check.equal(
        [len(message["text"]) for message in gathered],
        [10 ** (number + 1) for number in range(world_size)],
        "text lengths",
    )


@case("comm.objects.broadcast", requires=[COMM], world_size=WORLDS)
def test_broadcast_objects(check, rank, world_size, group):
    """broadcast_object_list gives every rank the root's list."""
    for root in range(world_size):
        objects = [f"from {rank}", {rank}, None]
        dist.broadcast_object_list(objects, root)
        check.equal(objects, [f"from {root}", {root}, None], f"the list of root {root}")


@case("comm.objects.rooted", requires=[COMM, COMM_ROOTED], world_size=WORLDS)
def test_rooted_objects(check, rank, world_size, group):
    """The last rank gathers the objects of all ranks and scatters them in reverse order."""
    root = world_size - 1
    gathered = [None] * world_size if rank == root else None
    scattered = [None]

    dist.gather_object(f"of {rank}", gathered, root)
    if rank == root:
        check.equal(gathered, [f"of {number}" for number in range(world_size)], "the gathered objects")
    dist.scatter_object_list(scattered, gathered[::-1] if rank == root else None, root)

    check.equal(scattered, [f"of {world_size - 1 - rank}"], "the scattered object")


def process_identity():
    """Return what tells this process from all others. Process ids repeat on other hosts and in containers."""
    kernel = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return kernel, str(Path("/proc/self/ns/pid").readlink()), os.getpid()


@case("comm.ranks", requires=[COMM], world_size=WORLDS)
def test_ranks(check, rank, world_size, group):
    """Ranks are separate processes, numbered in order, with different random numbers."""
    gathered = [None] * world_size
    dist.all_gather_object(gathered, (rank, process_identity(), torch.rand(1).item()))

    check.equal(
        (dist.get_rank(), dist.get_world_size()), (rank, world_size), "rank and world size of torch.distributed"
    )
    check.equal([number for number, _, _ in gathered], list(range(world_size)), "ranks in order")
    check.equal(len({process for _, process, _ in gathered}), world_size, "number of processes")
    check.equal(len({draw for _, _, draw in gathered}), world_size, "number of different random draws")
