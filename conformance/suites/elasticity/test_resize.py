"""Cases about training that goes on with another number of ranks: the same global batch, and the same loss curve."""

from __future__ import annotations

import torch
import torch.distributed as dist

from conformance.accelerators.capabilities import COMM, COMM_DTYPE
from conformance.numerics.nearness import Near, near
from conformance.plan.case import case
from conformance.suites.elasticity.training import GLOBAL, MICRO, STEPS, Trainer, accumulation, curve, other_start

#: Every optimizer imports it, which takes seconds.
RANK_IMPORTS = ("torch._dynamo",)
NEEDS = (COMM, COMM_DTYPE.on("float32"))
#: Numbers of ranks before and after a checkpoint, and after another one.
CHANGES = {"2-1": (2, 1), "3-2": (3, 2), "1-3": (1, 3), "3-1-2": (3, 1, 2)}


def phase(device, rank, ranks, group, file, first):
    """Train on the first ``ranks`` ranks from the file of the phase before; return the Trainer and its losses."""
    if rank >= ranks:
        return None, []
    trainer = Trainer(device, group)
    if not first:
        other_start(trainer)
        trainer.load(file)
    losses = [trainer.train() for _ in range(STEPS)]
    if trainer.place == 0:
        trainer.save(file)
    return trainer, losses


@case("elasticity.resize", requires=NEEDS, axes={"ranks": tuple(CHANGES)}, world_size=3)
def test_resize(check, device, ranks, rank, world_size, group, shared_dir):
    """Training that goes on with another number of ranks follows the loss curve of one process, and keeps its batch."""
    numbers = CHANGES[ranks]
    groups = {number: dist.new_group(list(range(number))) for number in (1, 2, 3)}
    losses, trainer = [], None

    for place, number in enumerate(numbers):
        check.equal(accumulation(number) * MICRO * number, GLOBAL, f"samples in a step of {number} ranks")
        trainer, new = phase(device, rank, number, groups[number], shared_dir / "state.pt", place == 0)
        losses.append(new)
        dist.barrier()  # the file is complete

    exact, trained = curve(STEPS * len(numbers))
    for place, seen in enumerate(losses):
        for step, loss in enumerate(seen, place * STEPS):
            near(check, f"the loss of step {step} on {numbers[place]} ranks", loss, exact[step], Near.TRAJECTORY,
                 torch.float32)  # fmt: skip
    if trainer is not None:
        for (name, weight), right in zip(trainer.model.named_parameters(), trained.parameters(), strict=True):
            near(check, f"{name} at the end", weight.detach(), right.detach(), Near.TRAJECTORY)


@case("elasticity.returns", requires=NEEDS, world_size=3)
def test_rank_returns(check, device, rank, world_size, group, shared_dir):
    """A rank that was away for some steps and gets the others' weights by a broadcast has the same bits as they."""
    pair, all_ranks = dist.new_group([0, 1]), dist.new_group([0, 1, 2])
    trainer = Trainer(device, all_ranks)
    for _ in range(2):
        trainer.train()

    trainer.group, trainer.size = pair, 2
    if rank < 2:
        for _ in range(2):
            trainer.train()
    else:
        other_start(trainer)  # what it had is lost
    trainer.group, trainer.size = all_ranks, 3
    state = trainer.optimizer.state
    for parameter in trainer.model.parameters():
        for tensor in (parameter.data, state[parameter]["exp_avg"], state[parameter]["exp_avg_sq"]):
            dist.broadcast(tensor, 0)
        state[parameter]["step"] = torch.tensor(4.0)
    trainer.step = 4
    losses = [trainer.train() for _ in range(2)]

    exact, trained = curve(6)
    for step, loss in enumerate(losses, 4):
        near(check, f"the loss of step {step}", loss, exact[step], Near.TRAJECTORY, torch.float32)
    for (name, weight), right in zip(trainer.model.named_parameters(), trained.parameters(), strict=True):
        check.same_on_all_ranks(name, weight)
        near(check, f"{name} at the end", weight.detach(), right.detach(), Near.TRAJECTORY)
