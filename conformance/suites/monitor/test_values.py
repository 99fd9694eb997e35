"""Cases about logged values: they are what was computed, and reading one waits for it."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist

from conformance.accelerators.capabilities import (
    COMM,
    COMM_DTYPE,
    DTYPE,
    MEMORY,
    MEMORY_PINNED_ASYNC,
    MEMORY_STATS,
    RNG,
)
from conformance.numerics.nearness import Near, near
from conformance.plan.case import Level, case
from conformance.suites.accelerator.conveyor import HOST, Conveyor, numbers
from conformance.suites.accelerator.test_memory import settle

from .training import STEPS, batch, loss_and_norm, model, numbers_on_host, rate, steps_on_device

#: Every optimizer imports it, which takes seconds.
RANK_IMPORTS = ("torch._dynamo",)
FLOATS = ("float32", "float16", "bfloat16")


@case("monitor.scalars", requires=[DTYPE], axes={"dtype": FLOATS})
def test_scalars(check, device, dtype):
    """Loss, gradient norm and learning rate of every step are finite and equal the host's for the same weights."""
    kind, seen = getattr(torch, dtype), []

    for step, weights, loss, norm, used in steps_on_device(device, kind):
        exact_loss, exact_norm = numbers_on_host(weights, step, kind)
        near(check, f"the loss of step {step}", loss, exact_loss, Near.FORWARD)
        near(check, f"the gradient norm of step {step}", norm, exact_norm, Near.GRADIENTS, kind)
        check.that(
            math.isclose(used, rate(step), rel_tol=1e-12), f"the rate of step {step} is {used}, not {rate(step)}"
        )
        seen.append((step, loss.item(), norm.item()))

    check.equal([step for step, _, _ in seen], list(range(STEPS)), "the logged steps")
    check.that(all(math.isfinite(number) for row in seen for number in row), f"logged rows: {seen}")
    check.equal(len({loss for _, loss, _ in seen}), STEPS, "different losses in the logged steps")


@case("monitor.nonfinite", requires=[DTYPE], axes={"dtype": FLOATS})
def test_nonfinite(check, device, dtype):
    """The numbers of NaN and of infinite gradients are exact, wherever they stand."""
    kind, size = getattr(torch, dtype), 4099
    gradient = (torch.arange(size) % 7 - 3).to(kind)
    places = {"nan": [0, 1024, 4098], "inf": [1, 255, 256, 4096], "-inf": [4097, 2]}
    for value, where in places.items():
        gradient[where] = float(value)

    there = gradient.to(device)
    found = [int(there.isnan().sum()), int(there.isposinf().sum()), int(there.isneginf().sum())]
    finite = there[there.isfinite()].float().abs().sum().item()

    check.equal(found, [3, 4, 2], "numbers of NaN, inf and -inf")
    check.equal(finite, float(gradient[gradient.isfinite()].float().abs().sum()), "the sum of the finite magnitudes")


#: Ways of reading a device value for a log, and what they require.
READS = {
    "item": (),
    "list": (),
    "format": (),
    "copy": (),
    "pinned": (MEMORY_PINNED_ASYNC,),
}


def read(accelerator, value, way):
    """Return the first three numbers of a device tensor (n, n) on the host, read in one way."""
    row = value[0, :3]
    if way == "item":
        return [row[index].item() for index in range(3)]
    if way == "list":
        return row.cpu().tolist()
    if way == "format":
        return [float(f"{row[index]:.6f}") for index in range(3)]
    if way == "copy":
        return row.cpu().numpy().tolist()
    target = accelerator.pin_memory(torch.full((3,), -1.0))
    target.copy_(row, non_blocking=True)
    accelerator.synchronize()
    return target.cpu().tolist()


@case("monitor.read", requires=[MEMORY], axes={"way": READS})
def test_read(accelerator, check, device, way):
    """A value that is logged behind long work is the value after that work, with its fraction."""
    conveyor = Conveyor(accelerator, device)
    source = numbers(device, start=5) + 0.25
    target = torch.full_like(source, -1.0)
    expected = (numbers(HOST, start=5) + 0.25)[0, :3].cpu().tolist()

    for _ in range(3):
        target.fill_(-1.0)
        accelerator.synchronize()
        # Products with the identity keep the values only if they have 8 bits; the sum comes after them.
        conveyor.carry(source - 0.25, target)
        target += 0.25
        check.equal(read(accelerator, target, way), expected, f"numbers read by {way!r} behind long work")


@case("monitor.random", requires=[RNG], level=Level.CORE)
def test_logging_draws_nothing(accelerator, check, device):
    """Logging of values, norms and memory does not change the random numbers that training draws."""
    trained = model().to(device)  # seeds all generators

    def draws(logs, waits=True):
        accelerator.manual_seed_all(11)
        drawn = []
        for step in range(4):
            drawn.append(torch.rand(257, device=device).cpu())
            if waits:
                accelerator.synchronize()
            if logs:
                loss, norm = loss_and_norm(trained, *(tensor.to(device) for tensor in batch(step)))
                str((loss.item(), norm.item(), accelerator.memory_allocated(), accelerator.max_memory_allocated()))
                accelerator.synchronize()
        return torch.stack(drawn)

    silent, waited, logged = draws(logs=False, waits=False), draws(logs=False), draws(logs=True)

    check.equal(waited, silent, "four draws of 257 numbers with a call of synchronize() between them")
    check.equal(logged, waited, "four draws of 257 numbers with logging")
    check.equal(len(set(silent[:, 0].cpu().tolist())), 4, "different first numbers in four draws")


@case("monitor.ranks.mean", requires=[COMM, COMM_DTYPE.on("float32")], world_size=(2, 3))
def test_mean_of_ranks(check, device, rank, world_size, group, shared_dir):
    """The first rank alone writes the log, and the loss in it is the mean of the losses of all ranks."""
    trained, log = model().to(device), shared_dir / f"log-{rank}.txt"

    for step in range(3):
        loss, _ = loss_and_norm(trained, *(tensor.to(device) for tensor in batch(step, part=rank)))
        total = torch.stack([loss, loss.new_ones(())])
        dist.all_reduce(total)
        if rank == 0:
            with log.open("a", encoding="utf-8") as file:
                file.write(f"{step} {(total[0] / total[1]).item()!r}\n")
    dist.barrier()

    check.equal(sorted(path.name for path in shared_dir.glob("log-*")), ["log-0.txt"], "the written logs")
    rows = [line.split() for line in (shared_dir / "log-0.txt").read_text(encoding="utf-8").splitlines()]
    check.equal([int(step) for step, _ in rows], [0, 1, 2], "the logged steps")
    for step, value in rows:
        losses = [
            numbers_on_host(model().state_dict(), int(step), torch.float32, part)[0] for part in range(world_size)
        ]
        near(
            check, f"the mean loss of step {step}", torch.tensor(float(value)), torch.stack(losses).mean(), Near.FORWARD
        )


@case("monitor.ranks.memory", requires=[COMM, COMM_DTYPE.on("int64"), MEMORY_STATS], world_size=2)
def test_memory_of_ranks(accelerator, check, device, rank, world_size, group):
    """Gathered counters of memory show what each rank has allocated itself."""
    settle(accelerator)
    before = accelerator.memory_allocated()
    kept = torch.ones((rank + 1) << 20, device=device)

    mine = torch.tensor([accelerator.memory_allocated() - before, int(kept.sum())], device=device)
    rows = [torch.zeros_like(mine) for _ in range(world_size)]
    dist.all_gather(rows, mine)

    for other, row in enumerate(rows):
        grown, ones = row.cpu().tolist()
        least = (other + 1) << 22
        check.that(least <= grown < least + (1 << 21), f"rank {other} has {least} bytes more, and {grown} are gathered")
        check.equal(ones, (other + 1) << 20, f"ones on rank {other}")
