"""All-reduce, broadcast, gathering and scattering: values against the host, order, and agreement of the ranks."""

from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist

from conformance.accelerators.capabilities import COMM, DTYPE
from conformance.case import case

from .payloads import SIZES, payloads

DTYPES = ("float32", "bfloat16", "int64")
FLOATING = ("float32", "bfloat16")
WORLDS = (2, 3)


def reduced(case, device, operation, dtype, size, world_size, rank):
    """The device's result, on the host, and the inputs of all ranks."""
    kind = getattr(torch, dtype)
    inputs = payloads(case, world_size, SIZES[size], kind)
    buffer = inputs[rank].to(device, copy=True)  # on the host .to() would lend the row itself
    dist.all_reduce(buffer, operation)
    return buffer.cpu(), inputs


@case(
    "comm.all_reduce.sum",
    requires=[COMM, DTYPE],
    axes={"dtype": DTYPES, "size": tuple(SIZES)},
    world_size=WORLDS,
)
def test_sum(case, check, device, dtype, size, rank, world_size, group):
    """The sum is that of the host, rounded at most once for each rank, and the same bits on all ranks."""
    result, inputs = reduced(case, device, dist.ReduceOp.SUM, dtype, size, world_size, rank)

    check.same_on_all_ranks("sum", result)
    within_rounding(check, result, inputs, inputs.to(wide(inputs)).sum(0))


@case(
    "comm.all_reduce.max",
    requires=[COMM, DTYPE],
    axes={"dtype": DTYPES, "size": tuple(SIZES)},
    world_size=WORLDS,
)
def test_max(case, check, device, dtype, size, rank, world_size, group):
    """The largest of the ranks' values, exactly."""
    result, inputs = reduced(case, device, dist.ReduceOp.MAX, dtype, size, world_size, rank)

    check.same_on_all_ranks("max", result)
    check.equal(result, inputs.max(0).values, "largest")


@case(
    "comm.all_reduce.avg",
    requires=[COMM, DTYPE],
    axes={"dtype": FLOATING, "size": tuple(SIZES)},
    world_size=WORLDS,
)
def test_avg(case, check, device, dtype, size, rank, world_size, group):
    """The mean is that of the host, and the same bits on all ranks."""
    result, inputs = reduced(case, device, dist.ReduceOp.AVG, dtype, size, world_size, rank)

    check.same_on_all_ranks("mean", result)
    within_rounding(check, result, inputs, inputs.to(wide(inputs)).mean(0))


def wide(inputs):
    return torch.float64 if inputs.is_floating_point() else inputs.dtype


def within_rounding(check, result, inputs, expected):
    """One rounding to the dtype for each rank's contribution, relative to the sum of magnitudes; integers exactly."""
    if not inputs.is_floating_point():
        check.equal(result, expected, "sum")
        return
    unit = torch.finfo(result.dtype).eps / 2
    magnitude = inputs.double().abs().sum(0)
    error = ((result.double() - expected).abs() / magnitude).max().item()
    bound = (inputs.shape[0] + 1) * unit
    check.metric("error", error)
    check.that(error <= bound, f"off by {error:.3g} of the magnitudes' sum; rounding explains {bound:.3g}")


@case("comm.broadcast", requires=[COMM, DTYPE], axes={"dtype": DTYPES, "size": tuple(SIZES)}, world_size=WORLDS)
def test_broadcast(case, check, device, dtype, size, rank, world_size, group):
    """From every root, every rank gets the root's bits."""
    inputs = payloads(case, world_size, SIZES[size], getattr(torch, dtype))

    for root in range(world_size):
        buffer = inputs[rank].to(device, copy=True)
        dist.broadcast(buffer, root)
        check.equal(buffer, inputs[root].to(device), f"what rank {rank} has from root {root}")


@case("comm.all_gather", requires=[COMM, DTYPE], axes={"dtype": DTYPES, "size": tuple(SIZES)}, world_size=WORLDS)
def test_all_gather(case, check, device, dtype, size, rank, world_size, group):
    """Every rank gets every rank's bits, in the order of ranks."""
    inputs = payloads(case, world_size, SIZES[size], getattr(torch, dtype))
    gathered = [torch.zeros_like(inputs[0], device=device) for _ in range(world_size)]

    dist.all_gather(gathered, inputs[rank].to(device))

    for source, buffer in enumerate(gathered):
        check.equal(buffer.cpu(), inputs[source], f"the part of rank {source}")


@case("comm.reduce_scatter", requires=[COMM, DTYPE], axes={"dtype": DTYPES, "size": tuple(SIZES)}, world_size=WORLDS)
def test_reduce_scatter(case, check, device, dtype, size, rank, world_size, group):
    """Every rank gets its own slice of the sum."""
    kind, length = getattr(torch, dtype), SIZES[size]
    inputs = payloads(case, world_size, length * world_size, kind)
    mine = torch.zeros(length, dtype=kind, device=device)

    dist.reduce_scatter_tensor(mine, inputs[rank].to(device))

    part = inputs[:, rank * length : (rank + 1) * length]
    within_rounding(check, mine.cpu(), part, part.to(wide(part)).sum(0))


@case("comm.barrier", requires=[COMM], world_size=WORLDS)
def test_barrier(check, rank, world_size, group):
    """Nobody leaves a barrier before the last one has entered it."""
    delay = 0.05
    entered, left = [0.0] * world_size, [0.0] * world_size
    dist.barrier()

    for late in range(world_size):
        time.sleep(delay if rank == late else 0)
        before = time.monotonic()
        dist.barrier()
        after = time.monotonic()
        dist.all_gather_object(entered, before)
        dist.all_gather_object(left, after)

        early = max(entered) - min(left)
        check.that(early <= 0, f"a rank left {early:.3g} s before rank {late} had entered")


@case("comm.ranks", requires=[COMM], world_size=WORLDS)
def test_ranks(check, rank, world_size, group):
    """Ranks are processes of their own, numbered in order, and draw random numbers of their own."""
    everyone = [None] * world_size
    dist.all_gather_object(everyone, (rank, os.getpid(), torch.rand(1).item()))

    check.equal([number for number, _, _ in everyone], list(range(world_size)), "ranks in order")
    check.equal(len({process for _, process, _ in everyone}), world_size, "processes")
    check.equal(len({draw for _, _, draw in everyone}), world_size, "different random numbers")
