"""Compressed all-reduce cases: conservation of inputs, agreement of ranks, and bytes sent."""

from __future__ import annotations

from unittest import mock

import torch
import torch.distributed as dist

from conformance.accelerators.capabilities import COMM, COMM_ALL_TO_ALL, COMM_DTYPE
from conformance.kernels.compression import CompressedAllReduce, Feedback
from conformance.numerics.budgets import load_table
from conformance.numerics.nearness import Near, near, relative_error
from conformance.plan.case import case, seed_of

from .emulation import EmulatedExchange
from .packing import Packing

NEEDS = (COMM, COMM_ALL_TO_ALL, COMM_DTYPE.on("uint8"), COMM_DTYPE.on("float32"))
WORLDS = (1, 2, 3)
#: Elements: fewer than 8 × ranks; not a multiple of 8 × ranks; several thousand.
SIZES = ("1", "37", "4099")
CALLS = 5
LIMITS = load_table(__file__, "limits.toml")


def given(case, rank, call, size):
    """Return one rank's input in one call, (size), with one -0.0. Its magnitude grows with the rank."""
    generator = torch.Generator().manual_seed(seed_of(f"{case.id}/{rank}/{call}"))
    values = torch.randn(size, generator=generator) * (rank + 1)
    if size > 1:  # a single number stays, as zeros alone tell nothing
        values[call % size] = -0.0
    return values


def gathered(tensor, world_size):
    """Return the tensors of all ranks on the host, (world_size, ...)."""
    rows = [torch.empty_like(tensor) for _ in range(world_size)]
    dist.all_gather(rows, tensor.contiguous())
    return torch.stack(rows).cpu()


@case("compression.all_reduce.conservation", requires=NEEDS, axes={"size": SIZES}, world_size=WORLDS)
def test_conservation(accelerator, case, check, device, size, rank, world_size, group):
    """Result and feedback add up to the inputs and the feedback before, and all ranks have the same result."""
    packing, size = Packing(accelerator), int(size)
    wire = CompressedAllReduce(packing=packing.functions)
    feedback = wire.feedback(torch.zeros(size, device=device))
    kept = torch.zeros(feedback.worker.numel(), dtype=torch.float64)

    for call in range(CALLS):
        whole = kept.clone()
        whole[:size] += torch.stack([given(case, peer, call, size).double() for peer in range(world_size)]).mean(0)
        result = wire.all_reduce(given(case, rank, call, size).to(device), feedback)
        workers, servers = gathered(feedback.worker, world_size), gathered(feedback.server, world_size)
        kept = workers.double().mean(0) + servers.double().flatten()
        near(check, f"result and feedback of call {call}", result.cpu().double() + kept[:size], whole[:size],
             Near.SUMS, torch.float32, by_device=True)  # fmt: skip
        check.same_on_all_ranks(f"call {call}", result)
        for chunk in result.cpu().split(feedback.server.numel()):
            check.equal(len(set(chunk.abs().tolist())), 1, f"different magnitudes in a chunk of call {call}")
    packing.report(check)


@case("compression.all_reduce.emulation", requires=NEEDS, axes={"size": SIZES}, world_size=WORLDS)
def test_emulation(accelerator, case, check, device, size, rank, world_size, group):
    """Every result and every feedback agrees with a reference that one process computes from all inputs."""
    packing, emulated, size = Packing(accelerator), EmulatedExchange(), int(size)
    wire = CompressedAllReduce(packing=packing.functions)
    feedback = wire.feedback(torch.zeros(size, device=device))

    for call in range(CALLS):
        result = wire.all_reduce(given(case, rank, call, size).to(device), feedback)
        inputs = [given(case, peer, call, size).double() for peer in range(world_size)]
        expected, largest = emulated.mean(inputs), float(torch.stack(inputs).abs().max())
        near(check, f"the result of call {call}", result, expected, Near.FORWARD)
        feedbacks = {"worker": emulated.workers[rank], "server": emulated.servers.chunk(world_size)[rank]}
        for role, exact in feedbacks.items():
            # The largest input is the scale: on one rank the server's feedback is nothing but rounding.
            found = getattr(feedback, role)
            near(check, f"the {role}'s feedback in call {call}", found, exact, Near.FORWARD, largest=largest)
    packing.report(check)


@case("compression.all_reduce.converges", requires=NEEDS, world_size=(2, 3))
def test_converges(accelerator, case, check, device, rank, world_size, group):
    """The running mean of calls on one input converges to the exact mean: feedback corrects the errors."""
    mine, mean = (
        given(case, rank, 0, 600),
        torch.stack([given(case, peer, 0, 600) for peer in range(world_size)]).mean(0).double(),
    )
    packing = Packing(accelerator)
    wire, total, errors = CompressedAllReduce(packing=packing.functions), torch.zeros(600, dtype=torch.float64), {}
    feedback = wire.feedback(mine.to(device))

    for call in range(1, 101):
        total += wire.all_reduce(mine.to(device, copy=True), feedback).cpu()
        if call in (1, 10, 100):
            errors[call] = float((total / call - mean).norm() / mean.norm())

    for before, after in ((1, 10), (10, 100)):
        allowed = LIMITS["error_after_ten_times_the_calls"] * errors[before]
        check.that(errors[after] <= allowed, f"errors by calls are {errors}: {allowed:.3g} is allowed after {after}")
    least = LIMITS["error_of_one_call"]
    check.that(errors[1] >= least, f"one call is off by {errors[1]:.3g}, less than {least}: nothing is compressed")
    check.metric("error_after_100", round(errors[100], 5))
    packing.report(check)


@case("compression.all_reduce.empty", requires=NEEDS, world_size=WORLDS)
def test_empty(accelerator, check, device, world_size, group):
    """An all-reduce of an empty tensor keeps the shape and sends nothing, and the next one is right."""
    packing = Packing(accelerator)
    wire, empty = CompressedAllReduce(packing=packing.functions), torch.zeros(0, 5, device=device)
    none = torch.zeros(0, device=device)

    result = wire.all_reduce(empty, Feedback(none, none.clone()))

    check.equal(tuple(result.shape), (0, 5), "the shape of the result")
    check.equal(wire.bytes_sent, 0, "bytes sent")
    ones = torch.ones(16 * world_size, device=device)
    check.equal(relative_error(wire.all_reduce(ones, wire.feedback(ones)).cpu(), torch.ones(16 * world_size)), 0.0,
                "the error of ones afterwards")  # fmt: skip
    packing.report(check)


@case("compression.all_reduce.strides", requires=NEEDS, world_size=2)
def test_strides(accelerator, case, check, device, rank, group):
    """A transposed buffer is reduced in place to the values of a contiguous one."""
    dense = given(case, rank, 0, 48).view(6, 8).to(device).t().contiguous()
    strided = dense.t().contiguous().t()
    packing = Packing(accelerator)
    wire = CompressedAllReduce(packing=packing.functions)
    expected = EmulatedExchange().mean([given(case, peer, 0, 48).view(6, 8).t().double() for peer in range(2)])

    wire.all_reduce(strided, wire.feedback(strided))
    wire.all_reduce(dense, wire.feedback(dense))

    check.agree(strided.cpu(), dense.cpu(), "the transposed buffer")
    near(check, "the mean", dense, expected, Near.FORWARD)
    packing.report(check)


@case("compression.all_reduce.group", requires=NEEDS, world_size=3)
def test_group(accelerator, case, check, device, rank, group):
    """An all-reduce on a group of two of three ranks gives the mean of these two ranks."""
    pair = dist.new_group([0, 2])
    mine = given(case, rank, 0, 37).to(device)
    if rank == 1:
        check.that(True, "took no part")  # a case without a comparison verifies nothing and would fail
        return

    packing = Packing(accelerator)
    wire = CompressedAllReduce(pair, packing.functions)
    result = wire.all_reduce(mine, wire.feedback(mine))

    expected = EmulatedExchange().mean([given(case, peer, 0, 37).double() for peer in (0, 2)])
    near(check, "the mean of two", result, expected, Near.SUMS)
    packing.report(check)


@case("compression.wire", requires=NEEDS, world_size=(2, 3))
def test_wire(accelerator, check, device, world_size, group):
    """Collectives of a compressed all-reduce send at most a 25th of the bytes of a float32 ring."""
    size, sent = 24_000, []
    exchange, gather = dist.all_to_all_single, dist.all_gather

    def counted_exchange(out, given, **options):
        sent.append(given.nbytes * (world_size - 1) // world_size)
        return exchange(out, given, **options)

    def counted_gather(out, given, **options):
        sent.append(given.nbytes * (world_size - 1))
        return gather(out, given, **options)

    packing = Packing(accelerator)
    wire, buffer = CompressedAllReduce(packing=packing.functions), torch.ones(size, device=device)
    with mock.patch.multiple(dist, all_to_all_single=counted_exchange, all_gather=counted_gather):
        wire.all_reduce(buffer, wire.feedback(buffer))

    # A ring all-reduce sends 2 (n - 1) / n times the tensor from each rank.
    ring = 2 * (world_size - 1) / world_size * 4 * size
    share = sum(sent) / ring
    most = LIMITS["share_of_the_wire"]
    message = f"{sum(sent)} bytes were sent, {share:.3f} of the {ring:.0f} of a float32 ring; at most {most} is allowed"
    check.that(0 < share <= most, message)
    check.equal(wire.bytes_sent, sum(sent), "bytes_sent of the all-reduce")
    check.equal(relative_error(buffer.cpu(), torch.ones(size)), 0.0, "the error of ones")
    check.metric("share_of_the_wire", round(share, 4))
    packing.report(check)
