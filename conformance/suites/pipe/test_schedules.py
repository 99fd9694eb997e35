"""Schedule cases of torch.distributed.pipelining."""

from __future__ import annotations

import contextlib
import io

import torch
import torch.distributed as dist
from torch import nn

from conformance.accelerators.capabilities import COMM, COMM_DTYPE, COMM_P2P
from conformance.numerics.nearness import Near, near
from conformance.plan.case import case

#: Modules that take seconds to import. They are imported once, before the ranks are forked.
RANK_IMPORTS = ("torch._dynamo", "torch.distributed.pipelining")
NEEDS = (COMM, COMM_P2P, COMM_DTYPE.on("float32"))
WIDTH, BATCH, MICRO = 10, 12, 6
SCHEDULES = {"gpipe": "ScheduleGPipe", "1f1b": "Schedule1F1B"}
LOOPED = {"interleaved": "ScheduleInterleaved1F1B", "looped-bfs": "ScheduleLoopedBFS"}


def layer(number):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(number)
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())


def data():
    generator = torch.Generator().manual_seed(9)
    return torch.randn(BATCH, WIDTH, generator=generator), torch.randn(BATCH, WIDTH, generator=generator)


def sequential(count):
    """Return all layers in float64 after a backward pass of the whole batch in one process, and the loss."""
    layers = nn.Sequential(*(layer(number) for number in range(count))).double()
    inputs, targets = (tensor.double() for tensor in data())
    loss = nn.functional.mse_loss(layers(inputs), targets)
    loss.backward()
    return layers, loss.detach()


def stage_of(module, number, count, device):
    from torch.distributed.pipelining import PipelineStage

    return PipelineStage(module.to(device), number, count, device)


def run(schedule, device, rank, last):
    """Run one step of the schedule and return the losses of its micro-batches; an empty list but on rank ``last``."""
    inputs, targets = (tensor.to(device) for tensor in data())
    return step(schedule, inputs, targets, rank, last)


def step(schedule, inputs, targets, rank, last):
    """Run one step of the schedule on these tensors and return the losses; an empty list but on rank ``last``."""
    losses = []
    given = (inputs,) if rank == 0 else ()
    with contextlib.redirect_stdout(io.StringIO()):
        schedule.step(*given, **({"target": targets, "losses": losses} if rank == last else {}))
    return losses


def check_stage(check, module, exact, number):
    for (name, parameter), reference in zip(module.named_parameters(), exact[number].parameters(), strict=True):
        near(check, f"the gradient of layer {number}, {name}", parameter.grad, reference.grad, Near.GRADIENTS)


@case("pipe.schedule", requires=NEEDS, axes={"schedule": tuple(SCHEDULES)}, world_size=(2, 3, 4))
def test_schedule(check, device, schedule, rank, world_size, group):
    """With one stage on each rank, the loss and every gradient agree with one process."""
    from torch.distributed import pipelining

    exact, loss = sequential(world_size)
    module = layer(rank).to(device)
    kind = getattr(pipelining, SCHEDULES[schedule])
    stage = stage_of(module, rank, world_size, device)

    losses = run(kind(stage, MICRO, loss_fn=nn.functional.mse_loss), device, rank, world_size - 1)

    check_stage(check, module, exact, rank)
    if rank == world_size - 1:
        check.equal(len(losses), MICRO, "micro-batches with a loss")
        near(check, "the loss", torch.stack(losses).mean(), loss, Near.FORWARD)


@case("pipe.looped", requires=NEEDS, axes={"schedule": tuple(LOOPED)}, world_size=2)
def test_looped(check, device, schedule, rank, world_size, group):
    """With two stages on each rank, the loss and every gradient agree with one process."""
    from torch.distributed import pipelining

    count = 2 * world_size
    exact, loss = sequential(count)
    numbers = (rank, rank + world_size)
    modules = {number: layer(number).to(device) for number in numbers}
    stages = [stage_of(modules[number], number, count, device) for number in numbers]

    losses = run(getattr(pipelining, LOOPED[schedule])(stages, MICRO, loss_fn=nn.functional.mse_loss), device, rank, 1)

    for number, module in modules.items():
        check_stage(check, module, exact, number)
    if rank == world_size - 1:
        near(check, "the loss", torch.stack(losses).mean(), loss, Near.FORWARD)


@case("pipe.tied", requires=NEEDS, axes={"schedule": tuple(SCHEDULES)}, world_size=2)
def test_tied(check, device, schedule, rank, world_size, group):
    """A weight shared by the first and the last stage gets the sum of both copies' gradients."""
    from torch.distributed import pipelining

    shared = layer(0).double()
    inputs, targets = (tensor.double() for tensor in data())
    nn.functional.mse_loss(shared(shared(inputs)), targets).backward()
    module = layer(0).to(device)
    kind = getattr(pipelining, SCHEDULES[schedule])

    run(kind(stage_of(module, rank, 2, device), MICRO, loss_fn=nn.functional.mse_loss), device, rank, 1)
    for parameter in module.parameters():
        dist.all_reduce(parameter.grad)

    for (name, parameter), reference in zip(module.named_parameters(), shared.parameters(), strict=True):
        near(check, f"the gradient of {name}", parameter.grad, reference.grad, Near.GRADIENTS)
        check.same_on_all_ranks(name, parameter.grad)
