"""Cases for the order of collectives: barriers, asynchronous work, and streams."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from conformance.accelerators.capabilities import COMM, STREAM_ORDER
from conformance.plan.case import case

from .payloads import WORLDS

CALLS = ("all_reduce", "broadcast", "all_gather", "reduce_scatter")


def started(call, mine, rank, world_size):
    """Start an asynchronous call on ``mine``; return its work handle, its output and the expected values."""
    total = float(sum(range(1, world_size + 1)))
    if call == "all_reduce":
        return dist.all_reduce(mine, async_op=True), mine, [total] * mine.numel()
    if call == "broadcast":
        return dist.broadcast(mine, world_size - 1, async_op=True), mine, [float(world_size)] * mine.numel()
    if call == "all_gather":
        whole = torch.zeros(world_size * mine.numel(), device=mine.device)
        work = dist.all_gather_into_tensor(whole, mine, async_op=True)
        return work, whole, [n + 1.0 for n in range(world_size) for _ in range(mine.numel())]
    part = torch.zeros(mine.numel() // world_size, device=mine.device)
    return dist.reduce_scatter_tensor(part, mine, async_op=True), part, [total] * part.numel()


@case("comm.async", requires=[COMM], axes={"call": CALLS}, world_size=WORLDS)
def test_handle(check, device, call, rank, world_size, group):
    """Work that is queued after wait() sees the result of an asynchronous collective."""
    mine = torch.full((12,), rank + 1.0, device=device)

    work, result, expected = started(call, mine, rank, world_size)
    work.wait()
    doubled = result * 2

    check.equal(doubled.cpu().tolist(), [2 * value for value in expected], f"twice the result of {call}")


@case("comm.async.completed", requires=[COMM], axes={"call": ("all_reduce", "broadcast", "all_gather")}, world_size=2)
def test_completed(check, device, call, rank, world_size, group):
    """A work handle reports completion after wait() and a read of the result."""
    work, result, _ = started(call, torch.ones(12, device=device), rank, world_size)
    work.wait()
    result.cpu()

    check.that(work.is_completed(), f"is_completed() of {call} is false after wait() and a read of the result")


@case("comm.async.reversed", requires=[COMM], world_size=WORLDS)
def test_reversed(check, device, rank, world_size, group):
    """Many asynchronous calls give the right sums when they are waited for in reverse order."""
    buffers = [torch.full((7,), float(rank + number), device=device) for number in range(8)]

    works = [dist.all_reduce(buffer, async_op=True) for buffer in buffers]
    for work in reversed(works):
        work.wait()

    rank_sum = sum(range(world_size))
    for number, buffer in enumerate(buffers):
        check.equal(buffer.cpu().tolist(), [float(rank_sum + number * world_size)] * 7, f"sum {number}")


@case("comm.async.groups", requires=[COMM], world_size=WORLDS)
def test_two_groups(check, device, rank, world_size, group):
    """Asynchronous work of two groups runs side by side with separate results."""
    second = dist.new_group(list(range(world_size)))
    ones, tens = (torch.full((1000,), value, device=device) for value in (1.0, 10.0))

    works = [dist.all_reduce(ones, async_op=True), dist.all_reduce(tens, group=second, async_op=True)]
    for work in works:
        work.wait()

    check.equal((ones[0].item(), tens[-1].item()), (1.0 * world_size, 10.0 * world_size), "the two sums")


@case("comm.sequence", requires=[COMM], world_size=WORLDS)
def test_sequence(check, device, rank, world_size, group):
    """Each collective sees the values that the previous one wrote."""
    value = torch.ones(65, device=device)

    for _ in range(5):
        dist.all_reduce(value)
        value /= world_size
        value += 1

    check.equal(value.cpu().tolist(), [6.0] * 65, "the values after five rounds")


@case("comm.barrier", requires=[COMM], world_size=WORLDS)
def test_barrier(check, rank, world_size, group):
    """No rank leaves a barrier before the last rank has entered it."""
    # Hosts have different clocks, so each rank says in the group's store that it is about to enter. The store answers
    # requests in the order in which they arrive, and a rank has its answer before it goes on.
    delay, store = 0.05, group.get_group_store()
    dist.barrier()  # all ranks start the first round together

    for late in range(world_size):
        time.sleep(delay if rank == late else 0)
        store.add(f"entered/{late}", 1)
        dist.barrier()
        entered = store.add(f"entered/{late}", 0)

        check.equal(entered, world_size, f"ranks that had entered the barrier when one left it; rank {late} was late")


@case("comm.stream.before", requires=[COMM, STREAM_ORDER], world_size=WORLDS)
def test_reads_what_is_queued(check, device, rank, world_size, group):
    """A collective reads the results of work queued before it on the current stream."""
    matrix = torch.eye(96, device=device) * 2

    for _ in range(10):
        # The clamp keeps the diagonal at 2.0, however often the matrix is squared.
        matrix = (matrix @ matrix).clamp_(max=2.0)
    dist.all_reduce(matrix)

    check.equal(matrix.diagonal().cpu(), torch.full((96,), 2.0 * world_size), "the sum of the queued results")


@case("comm.stream.side", requires=[COMM, STREAM_ORDER], world_size=WORLDS)
def test_on_a_side_stream(check, accelerator, device, rank, world_size, group):
    """A collective on a side stream reads and writes in that stream's order."""
    side = accelerator.Stream()
    value = torch.zeros(1000, device=device)
    side.wait_stream(accelerator.current_stream())

    with accelerator.stream(side):
        value += rank + 1
        dist.all_reduce(value)
        value *= 2
    accelerator.current_stream().wait_stream(side)
    after = value + 1

    total = 2.0 * sum(range(1, world_size + 1)) + 1
    check.equal(after.cpu(), torch.full((1000,), total), "the values after the side stream")


@case("comm.stream.wait", requires=[COMM, STREAM_ORDER], axes={"call": CALLS}, world_size=WORLDS)
def test_wait_orders(check, accelerator, device, call, rank, world_size, group):
    """wait() makes the current stream wait for work that was started on another stream."""
    side = accelerator.Stream()
    mine = torch.full((12_000,), rank + 1.0, device=device)
    side.wait_stream(accelerator.current_stream())

    with accelerator.stream(side):
        work, result, expected = started(call, mine, rank, world_size)
    work.wait()
    shifted = result + 0.5

    check.equal(shifted.cpu(), torch.tensor(expected) + 0.5, f"the result of {call}")
