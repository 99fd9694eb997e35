"""Pipeline cases in which micro-batches or batches differ in shape."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from conformance.accelerators.capabilities import COMM, COMM_DTYPE, COMM_P2P
from conformance.numerics.nearness import Near, near
from conformance.plan.case import case

from .neighbours import Neighbours
from .test_schedules import SCHEDULES, WIDTH, check_stage, layer, stage_of, step

#: Modules that take seconds to import. They are imported once, before the ranks are forked.
RANK_IMPORTS = ("torch._dynamo", "torch.distributed.pipelining")
NEEDS = (COMM, COMM_P2P, COMM_DTYPE.on("float32"))
#: Samples and positions of each micro-batch: shorter ones follow longer ones, and longer ones follow shorter ones.
MICRO = ((2, 5), (1, 3), (3, 9), (1, 1), (2, 7))
#: The same of whole batches, each in three micro-batches.
BATCHES = ((6, 5), (3, 11), (9, 2))


def tensors(shapes):
    generator = torch.Generator().manual_seed(12)
    return [torch.randn(*shape, WIDTH, generator=generator) for shape in shapes]


def loss_of(output):
    """Return a sum, and not a mean, so that losses of micro-batches of any size add up."""
    return output.square().sum()


def sequential(count, inputs):
    """Return all layers in float64 after backward passes of all inputs in one process, and the loss of each input."""
    layers = nn.Sequential(*(layer(number) for number in range(count))).double()
    losses = [loss_of(layers(batch.double())) for batch in inputs]
    torch.stack(losses).sum().backward()
    return layers, [loss.detach() for loss in losses]


class Stage:
    """Pipeline stage of one rank: forward and backward passes of single micro-batches."""

    def __init__(self, module, neighbours, inputs):
        self._module, self._neighbours = module, neighbours
        self._inputs, self._open = iter(inputs), []
        self.losses = []

    def forward(self, arrived):
        """Run a forward pass and return the tensor for the next rank, or the loss on the last rank.

        The first rank receives nothing and takes its next own input.
        """
        given = next(self._inputs) if arrived is None else arrived.requires_grad_()
        output = self._module(given)
        if self._neighbours.is_last:
            output = loss_of(output)
            self.losses.append(output.detach())
        self._open.append((given, output))
        return output

    def backward(self, gradient):
        """Run the backward pass of the oldest open micro-batch and return the gradient for the previous rank."""
        given, output = self._open.pop(0)
        output.backward(gradient)
        return given.grad


def gpipe(stage, neighbours, count):
    """Run all forward passes, then all backward passes."""
    for _ in range(count):
        neighbours.with_next(stage.forward(neighbours.with_previous(None, wants=True)), wants=False)
    for _ in range(count):
        neighbours.with_previous(stage.backward(neighbours.with_next(None, wants=True)), wants=False)


def one_forward_one_backward(stage, neighbours, count):
    """Run a forward pass for each rank behind this one, then forward and backward in turn, then the rest backward."""
    ahead = min(count, neighbours.behind)
    for _ in range(ahead):
        neighbours.with_next(stage.forward(neighbours.with_previous(None, wants=True)), wants=False)
    arrived = neighbours.with_previous(None, wants=True) if ahead < count else None
    for number in range(count - ahead):
        gradient = neighbours.with_next(stage.forward(arrived), wants=True)
        arrived = neighbours.with_previous(stage.backward(gradient), wants=number < count - ahead - 1)
    for _ in range(ahead):
        neighbours.with_previous(stage.backward(neighbours.with_next(None, wants=True)), wants=False)


ORDERS = {"gpipe": gpipe, "1f1b": one_forward_one_backward}


@case("pipe.shapes", requires=[*NEEDS, COMM_DTYPE.on("int64")], axes={"schedule": tuple(ORDERS)}, world_size=(2, 3))
def test_shapes(check, device, schedule, rank, world_size, group):
    """Micro-batches of different shapes give the losses and gradients of one process."""
    inputs = tensors(MICRO)
    exact, losses = sequential(world_size, inputs)
    module = layer(rank).to(device)
    neighbours = Neighbours(device, rank, world_size)
    stage = Stage(module, neighbours, [batch.to(device) for batch in inputs])

    dist.barrier()  # some backends need all ranks in a group's first call, and the calls below are between two ranks
    ORDERS[schedule](stage, neighbours, len(MICRO))

    check_stage(check, module, exact, rank)
    if neighbours.is_last:
        near(check, "the losses", torch.stack(stage.losses), torch.stack(losses), Near.FORWARD)


@case("pipe.shapes.inferred", requires=NEEDS, axes={"schedule": tuple(SCHEDULES)}, world_size=2)
def test_inferred(check, device, schedule, rank, world_size, group):
    """Batches of different shapes, which stages infer, give the summed gradients of one process."""
    from torch.distributed import pipelining

    batches = tensors(BATCHES)
    exact, losses = sequential(world_size, batches)
    module = layer(rank).to(device)

    found = []
    for batch in batches:
        # A schedule keeps the shapes of its first batch, so every batch gets a new schedule.
        kind = getattr(pipelining, SCHEDULES[schedule])
        schedule_of_batch = kind(stage_of(module, rank, world_size, device), 3, loss_fn=_loss, scale_grads=False)
        batch = batch.to(device)
        found.append(step(schedule_of_batch, batch, batch, rank, world_size - 1))

    check_stage(check, module, exact, rank)
    if rank == world_size - 1:
        sums = torch.stack([torch.stack(losses_of_batch).sum() for losses_of_batch in found])
        near(check, "the losses", sums, torch.stack(losses), Near.FORWARD)


def _loss(output, target):
    """Return the loss. Schedules call it with a target, which this loss does not have."""
    del target
    return loss_of(output)
