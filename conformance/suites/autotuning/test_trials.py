"""Cases about trials side by side and one after the other: none changes the result of another."""

from __future__ import annotations

import threading

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from conformance.accelerators.capabilities import (
    COMM,
    COMM_DTYPE,
    DEVICE_MULTIPLE,
    MEMORY,
    MEMORY_PEAK,
    MEMORY_STATS,
    RNG,
)
from conformance.numerics.nearness import Near, near
from conformance.plan.case import Level, case
from conformance.process.machine import slowdown
from conformance.suites.accelerator.test_memory import GRANULARITY, MIB, settle

from .trials import FEATURES, LIMITS, check_results, expected_gradient, expected_losses, factors, run_trial, samples

#: Every optimizer imports it, which takes seconds.
RANK_IMPORTS = ("torch._dynamo",)
BATCHES = (2, 5, 9)
ORDERS = {"descending": (9, 5, 2), "repeated": (5, 5, 2, 5, 9), "large-first": (9, 2, 5)}


@case("autotuning.order", requires=[MEMORY_PEAK], axes={"order": tuple(ORDERS)})
def test_order(accelerator, check, device, order):
    """The peak and the results of a trial do not depend on the trials before it."""
    run_trial(accelerator, device, 1)
    rising = {batch: run_trial(accelerator, device, batch).peak for batch in BATCHES}

    for place, batch in enumerate(ORDERS[order]):
        trial = run_trial(accelerator, device, batch)
        check_results(check, trial, batch)
        difference = abs(trial.peak - rising[batch])
        check.that(difference <= GRANULARITY,
                   f"trial {place} of {batch} samples has a peak of {trial.peak}, before {rising[batch]}")  # fmt: skip


def drawn(accelerator, device, seed, size):
    """Return the dropout mask and the noise of a trial with that seed, on the host."""
    accelerator.manual_seed_all(seed)
    mask = nn.functional.dropout(torch.ones(size, device=device), 0.5)
    return torch.cat([mask, torch.randn(size, device=device)]).cpu()


@case("autotuning.order.random_numbers", requires=[RNG], level=Level.CORE)
def test_random_numbers(accelerator, check, device):
    """The random numbers of a trial follow from its seed and not from the trials before it."""
    sizes = {1: 4099, 2: 513, 3: 65537}
    first = {seed: drawn(accelerator, device, seed, size) for seed, size in sizes.items()}

    again = {seed: drawn(accelerator, device, seed, size) for seed, size in reversed(sizes.items())}

    for seed, numbers in first.items():
        check.equal(again[seed], numbers, f"mask and noise of the trial with seed {seed}")
        mask = numbers[: sizes[seed]]
        check.equal(sorted(set(mask.tolist())), [0.0, 2.0], f"values in the dropout mask of seed {seed}")
    check.that(not torch.equal(first[1][:513], first[2][:513]), "seeds 1 and 2 give the same mask")


#: Samples of the whole batch, and micro-batches that a tuner may cut it into.
WHOLE, MICRO = 12, ("1", "2", "3", "4", "6", "12")


@case("autotuning.accumulation", requires=[MEMORY], level=Level.CORE, axes={"micro_batch": MICRO})
def test_accumulation(check, device, micro_batch):
    """The gradient of a whole batch does not depend on the micro-batches that a tuner cuts it into."""
    trained, losses = factors().to(device).requires_grad_(), []

    for part in samples(WHOLE).split(int(micro_batch)):
        loss = (part.to(device) * trained).square().sum(1)
        loss.sum().backward()
        losses.append(loss.detach().cpu())

    check.equal(torch.cat(losses), expected_losses(WHOLE), "losses of all samples")
    check.equal(trained.grad.cpu(), expected_gradient(WHOLE), "the accumulated gradient")


@case("autotuning.parallel", requires=[DEVICE_MULTIPLE, MEMORY_PEAK])
def test_parallel(accelerator, check, device):
    """Two trials at the same time on two devices give the results of single trials, each with its own memory."""
    places = [torch.device(accelerator.device_name(index)) for index in range(2)]
    batches = (3, 8)
    alone = [run_trial(accelerator, place, batch).peak for place, batch in zip(places, batches, strict=True)]
    settle(accelerator)
    before = [accelerator.memory_allocated(index) for index in range(2)]
    for index in range(2):
        accelerator.reset_peak_memory_stats(index)
    meet, found, errors = threading.Barrier(2, timeout=30 * slowdown()), {}, []

    def trial(index):
        try:
            inputs, trained = samples(batches[index]).to(places[index]), factors().to(places[index]).requires_grad_()
            meet.wait()
            losses = (inputs * trained).square().sum(1)
            losses.sum().backward()
            accelerator.synchronize(index)
            found[index] = (losses.detach().cpu(), trained.grad.cpu(), str(trained.grad.device))
            meet.wait()
        except BaseException as error:
            meet.abort()
            errors.append(error)

    threads = [threading.Thread(target=trial, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    if errors:
        raise errors[0]
    for index, batch in enumerate(batches):
        losses, gradient, where = found[index]
        check.equal(losses, expected_losses(batch), f"losses on {places[index]}")
        check.equal(gradient, expected_gradient(batch), f"gradient on {places[index]}")
        check.equal(where, str(places[index]), "the device of the gradient")
        peak = accelerator.max_memory_allocated(index) - before[index]
        least = LIMITS["fewest_live"] * batch * FEATURES * 4
        check.that(alone[index] >= least, f"the peak of {batch} samples on {where} is {alone[index]}, below {least}")
        check.that(abs(peak - alone[index]) <= GRANULARITY,
                   f"the peak of {batch} samples on {where} is {peak} bytes, and {alone[index]} alone")  # fmt: skip


#: Weights of four equal tensors, so that two ranks have equal shares.
EQUAL = (MIB, MIB, MIB, MIB)


@case(
    "autotuning.memory_model.sharded",
    requires=[COMM, COMM_DTYPE.on("float32"), MEMORY_STATS],
    world_size=2,
)
def test_sharded_states(accelerator, check, device, rank, world_size, group):
    """Each of two ranks holds half of the optimizer's states, and both get the weights of one process."""
    weights = [nn.Parameter(torch.full((size,), 1.0 + number, device=device)) for number, size in enumerate(EQUAL)]
    optimizer = ZeroRedundancyOptimizer(weights, torch.optim.Adam, lr=0.125, eps=1e-3, foreach=False)
    for number, weight in enumerate(weights):
        weight.grad = ((torch.arange(MIB) + number) % 17 - 8).float().to(device)
    total = torch.ones(1, device=device)
    dist.all_reduce(total)  # a backend's own buffers do not count
    settle(accelerator)
    before = accelerator.memory_allocated()

    optimizer.step()
    accelerator.synchronize()
    settle(accelerator)

    states = accelerator.memory_allocated() - before
    # Adam has two states of 4 bytes for each weight; a rank has those of its half.
    model = 2 * 4 * sum(EQUAL) // world_size
    check.that(model <= states <= model + GRANULARITY, f"half of the states are {model} bytes; {states} were allocated")
    exact = [nn.Parameter(torch.full((size,), 1.0 + number).double()) for number, size in enumerate(EQUAL)]
    for number, weight in enumerate(exact):
        weight.grad = ((torch.arange(MIB) + number) % 17 - 8).double()
    torch.optim.Adam(exact, lr=0.125, eps=1e-3).step()
    for number, (weight, right) in enumerate(zip(weights, exact, strict=True)):
        near(check, f"weight {number}", weight.detach(), right.detach(), Near.TRAJECTORY)
    check.equal(total.item(), float(world_size), "the sum of ones")
