"""Cases for broadcast, gather, scatter and all-to-all: every bit arrives at its place in rank order."""

from __future__ import annotations

import itertools

import torch
import torch.distributed as dist

from conformance.accelerators.capabilities import COMM, COMM_ALL_TO_ALL, COMM_DTYPE, COMM_ROOTED, DTYPE
from conformance.plan.case import case

from .payloads import DTYPES, HUGE, MOVED, SIZES, WORLDS, done, payloads, ways

TWO_SIZES = ("1", "256k3")


@case(
    "comm.broadcast", requires=[COMM, DTYPE, COMM_DTYPE], axes={"dtype": DTYPES, "size": TWO_SIZES}, world_size=WORLDS
)
def test_broadcast(case, check, device, dtype, size, rank, world_size, group):
    """A broadcast from any root gives every rank the root's bits."""
    inputs = payloads(case, world_size, SIZES[size], getattr(torch, dtype), MOVED)

    for root, background in itertools.product(range(world_size), ways(size)):
        buffer = inputs[rank].to(device, copy=True)
        done(dist.broadcast(buffer, root, async_op=background))
        check.equal(buffer.cpu(), inputs[root], f"rank {rank}'s tensor from root {root}")


@case("comm.broadcast.huge", requires=[COMM], world_size=WORLDS)
def test_broadcast_huge(check, device, rank, world_size, group):
    """A broadcast of more than 32 MiB from the last rank delivers every element."""
    positions = torch.arange(HUGE, dtype=torch.int32)
    buffer = (positions if rank == world_size - 1 else torch.zeros_like(positions)).to(device)

    dist.broadcast(buffer, world_size - 1)

    check.equal(buffer.cpu(), positions, "the broadcast tensor")


@case(
    "comm.all_gather", requires=[COMM, DTYPE, COMM_DTYPE], axes={"dtype": DTYPES, "size": TWO_SIZES}, world_size=WORLDS
)
def test_all_gather(case, check, device, dtype, size, rank, world_size, group):
    """all_gather gives every rank the bits of all ranks in rank order."""
    inputs = payloads(case, world_size, SIZES[size], getattr(torch, dtype), MOVED)
    for background in ways(size):
        gathered = [torch.zeros_like(inputs[0], device=device) for _ in range(world_size)]

        done(dist.all_gather(gathered, inputs[rank].to(device), async_op=background))

        for source, buffer in enumerate(gathered):
            check.equal(buffer.cpu(), inputs[source], f"the part of rank {source}")


@case("comm.all_gather.into_tensor", requires=[COMM, DTYPE, COMM_DTYPE], axes={"dtype": DTYPES, "size": TWO_SIZES},
      world_size=WORLDS)  # fmt: skip
def test_all_gather_into_tensor(case, check, device, dtype, size, rank, world_size, group):
    """all_gather_into_tensor concatenates all parts in rank order, also if the input is a slice of the output."""
    length = SIZES[size]
    inputs = payloads(case, world_size, length, getattr(torch, dtype), MOVED)
    for background in ways(size):
        whole = torch.zeros_like(inputs.flatten(), device=device)
        mine = whole[rank * length : (rank + 1) * length]
        mine.copy_(inputs[rank])

        done(dist.all_gather_into_tensor(whole, mine, async_op=background))

        check.same_on_all_ranks(f"gathered{' in the background' * background}", whole)
        check.equal(whole.cpu(), inputs.flatten(), "the parts")

    images = torch.zeros(world_size * length, 1, 1, 1, dtype=inputs.dtype, device=device)
    dist.all_gather_into_tensor(images, inputs[rank].view(-1, 1, 1, 1).to(device))
    check.equal(images.cpu().flatten(), inputs.flatten(), "the parts with four dimensions")


@case("comm.all_gather.layout", requires=[COMM], axes={"layout": ("slice", "transposed")}, world_size=WORLDS)
def test_all_gather_layout(check, device, layout, rank, world_size, group):
    """all_gather sends the elements of a view and not the memory between them."""
    exact = torch.arange(35.0).reshape(5, 7)
    whole = exact.to(device) + 100 * rank
    view = whole[2] if layout == "slice" else whole.t().contiguous().t()[:, 3].contiguous()
    sent = exact[2] if layout == "slice" else exact[:, 3]
    gathered = [torch.zeros_like(view) for _ in range(world_size)]

    dist.all_gather(gathered, view)

    for source, part in enumerate(gathered):
        check.equal(part.cpu(), sent + 100 * source, f"the part of rank {source}")


@case("comm.empty", requires=[COMM], axes={"call": ("all_reduce", "broadcast", "all_gather")}, world_size=WORLDS)
def test_empty(check, device, call, rank, world_size, group):
    """A collective accepts an empty tensor, and the next call works."""
    empty = torch.empty(0, device=device)

    if call == "all_gather":
        dist.all_gather([torch.empty(0, device=device) for _ in range(world_size)], empty)
    else:
        getattr(dist, call)(empty, *([0] if call == "broadcast" else []))
    ones = torch.ones(3, device=device)
    dist.all_reduce(ones)

    check.equal(ones.cpu().tolist(), [float(world_size)] * 3, "the sum of the next call")


@case("comm.gather", requires=[COMM, COMM_ROOTED, DTYPE, COMM_DTYPE], axes={"dtype": DTYPES}, world_size=WORLDS)
def test_gather(case, check, device, dtype, rank, world_size, group):
    """A gather gives any root every part in rank order, also if the root's own part is there already."""
    inputs = payloads(case, world_size, SIZES["13"], getattr(torch, dtype), MOVED)

    for root in range(world_size):
        parts = [torch.zeros_like(inputs[0], device=device) for _ in range(world_size)] if rank == root else None
        dist.gather(inputs[rank].to(device), parts, root)
        for source, part in enumerate(parts or ()):
            check.equal(part.cpu(), inputs[source], f"the part of rank {source}")
        rows = torch.zeros_like(inputs, device=device)
        rows[rank] = inputs[rank].to(device)
        dist.gather(rows[rank], list(rows) if rank == root else None, root)
        for source, part in enumerate(rows if rank == root else ()):
            check.equal(part.cpu(), inputs[source], f"the part of rank {source} in place")
    check.that(parts is not None or rank != world_size - 1, "the last root has no parts")


@case("comm.scatter", requires=[COMM, COMM_ROOTED, DTYPE, COMM_DTYPE], axes={"dtype": DTYPES}, world_size=WORLDS)
def test_scatter(case, check, device, dtype, rank, world_size, group):
    """A scatter from any root gives every rank its part, also if the root keeps its own part in place."""
    inputs = payloads(case, world_size * world_size, SIZES["13"], getattr(torch, dtype), MOVED)

    for root in range(world_size):
        mine = torch.zeros_like(inputs[0], device=device)
        parts = inputs[root * world_size : (root + 1) * world_size]
        dist.scatter(mine, [part.to(device) for part in parts] if rank == root else None, root)
        check.equal(mine.cpu(), parts[rank], f"the part from root {root}")
        rows = (parts if rank == root else torch.zeros_like(parts)).to(device, copy=True)
        dist.scatter(rows[rank], list(rows) if rank == root else None, root)
        check.equal(rows[rank].cpu(), parts[rank], f"the part from root {root} in place")
        if rank == root:
            check.equal(rows.cpu(), parts, "the parts that the root has sent")


@case("comm.all_to_all", requires=[COMM, COMM_ALL_TO_ALL, DTYPE, COMM_DTYPE], axes={"dtype": DTYPES, "size": TWO_SIZES},
      world_size=WORLDS)  # fmt: skip
def test_all_to_all(case, check, device, dtype, size, rank, world_size, group):
    """all_to_all_single moves part j of rank i to part i of rank j."""
    length = SIZES[size]
    inputs = payloads(case, world_size, length * world_size, getattr(torch, dtype), MOVED)
    for background in ways(size):
        mine = torch.zeros_like(inputs[0], device=device)

        done(dist.all_to_all_single(mine, inputs[rank].to(device), async_op=background))

        check.equal(mine.cpu(), inputs[:, rank * length : (rank + 1) * length].flatten(), "the parts of all ranks")


@case("comm.all_to_all.uneven", requires=[COMM, COMM_ALL_TO_ALL], axes={"zeros": ("none", "some")}, world_size=WORLDS)
def test_uneven(check, device, zeros, rank, world_size, group):
    """all_to_all_single exchanges a different number of rows between each pair of ranks, also none."""

    def rows(source, target):
        count = 1 + 2 * source + target
        return 0 if zeros == "some" and (source + target) % 2 else count

    def sent(source, target):
        # Every row names its sender and its receiver.
        first = 1000.0 * source + 100 * target
        return torch.arange(first, first + 3 * rows(source, target)).reshape(-1, 3)

    ranks = range(world_size)
    given = torch.cat([sent(rank, target) for target in ranks]).to(device)
    expected = torch.cat([sent(source, rank) for source in ranks])
    received = torch.full(expected.shape, float("nan"), device=device)

    dist.all_to_all_single(
        received, given, [rows(source, rank) for source in ranks], [rows(rank, target) for target in ranks]
    )

    check.equal(received.cpu(), expected, "the rows from all ranks")


@case("comm.all_to_all.list", requires=[COMM, COMM_ALL_TO_ALL], world_size=WORLDS)
def test_all_to_all_list(check, device, rank, world_size, group):
    """all_to_all exchanges lists of tensors between all ranks."""
    given = [torch.full((3,), 10.0 * rank + target, device=device) for target in range(world_size)]
    received = [torch.zeros(3, device=device) for _ in range(world_size)]

    dist.all_to_all(received, given)

    for source, part in enumerate(received):
        check.equal(part.cpu().tolist(), [10.0 * source + rank] * 3, f"the part of rank {source}")


@case("comm.all-to-all", requires=[COMM_ALL_TO_ALL], world_size=2, adaptive=True)
def test_all_to_all_is_there(check, device, rank, group):
    """Two ranks exchange elements with all_to_all_single."""
    mine = torch.zeros(2, device=device)

    dist.all_to_all_single(mine, torch.tensor([10.0, 11.0], device=device) + 10 * rank)

    check.equal(mine.cpu().tolist(), [10.0 + rank, 20.0 + rank], "the exchanged elements")


@case("comm.rooted", requires=[COMM_ROOTED], world_size=2, adaptive=True)
def test_rooted_is_there(check, device, rank, group):
    """One rank gathers tensors and scatters them back."""
    parts = [torch.zeros(1, device=device) for _ in range(2)] if rank == 1 else None
    back = torch.zeros(1, device=device)

    dist.gather(torch.tensor([5.0 + rank], device=device), parts, 1)
    dist.scatter(back, parts, 1)

    check.equal(back.item(), 5.0 + rank, "the tensor that came back")
