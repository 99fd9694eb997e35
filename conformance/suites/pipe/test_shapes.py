"""Micro-batches, and batches, that are not all of one shape."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from conformance.accelerators.capabilities import COMM, COMM_DTYPE, COMM_P2P
from conformance.case import case
from conformance.numerics.nearness import Near, near

from .neighbours import Neighbours
from .test_schedules import SCHEDULES, WIDTH, check_stage, layer, stage_of, step

RANK_IMPORTS = ("torch._dynamo", "torch.distributed.pipelining")
NEEDS = (COMM, COMM_P2P, COMM_DTYPE.on("float32"))
#: Samples and positions of each micro-batch: shorter ones follow longer ones, and the other way round.
MICRO = ((2, 5), (1, 3), (3, 9), (1, 1), (2, 7))
#: The same of whole batches, each in three micro-batches.
BATCHES = ((6, 5), (3, 11), (9, 2))


def tensors(shapes):
    generator = torch.Generator().manual_seed(12)
    return [torch.randn(*shape, WIDTH, generator=generator) for shape in shapes]


def loss_of(output):
    """A sum and no mean, so that micro-batches add up whatever their sizes are."""
    return output.square().sum()


def sequential(count, inputs):
    """All layers in one process in float64, after backward passes of all inputs; the loss of each."""
    layers = nn.Sequential(*(layer(number) for number in range(count))).double()
    losses = [loss_of(layers(each.double())) for each in inputs]
    torch.stack(losses).sum().backward()
    return layers, [loss.detach() for loss in losses]


class Stage:
    """A rank's layer between its neighbours: passes forward and backward, of one micro-batch each."""

    def __init__(self, module, neighbours, inputs):
        self._module, self._neighbours = module, neighbours
        self._inputs, self._open = iter(inputs), []
        self.losses = []

    def forward(self, arrived):
        """What goes to the next rank; the first one takes its own input, the last one gives its loss."""
        given = next(self._inputs) if arrived is None else arrived.requires_grad_()
        made = self._module(given)
        if self._neighbours.is_last:
            made = loss_of(made)
            self.losses.append(made.detach())
        self._open.append((given, made))
        return made

    def backward(self, gradient):
        """Of the oldest micro-batch that waits for it; what goes to the rank before."""
        given, made = self._open.pop(0)
        made.backward(gradient)
        return given.grad


def gpipe(stage, neighbours, count):
    """All forward, then all backward."""
    for _ in range(count):
        neighbours.with_next(stage.forward(neighbours.with_previous(None, wants=True)), wants=False)
    for _ in range(count):
        neighbours.with_previous(stage.backward(neighbours.with_next(None, wants=True)), wants=False)


def one_forward_one_backward(stage, neighbours, count):
    """As many forward as there are ranks behind this one, then one of each in turn, then what is left backward."""
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
    """Every micro-batch has a shape of its own, which travels before it: losses and gradients of one process."""
    inputs = tensors(MICRO)
    exact, losses = sequential(world_size, inputs)
    module = layer(rank).to(device)
    neighbours = Neighbours(device, rank, world_size)
    stage = Stage(module, neighbours, [each.to(device) for each in inputs])

    dist.barrier()  # some backends want all ranks in a group's first call, and the batches below are of two
    ORDERS[schedule](stage, neighbours, len(MICRO))

    check_stage(check, module, exact, rank)
    if neighbours.is_last:
        near(check, "the losses", torch.stack(stage.losses), torch.stack(losses), Near.FORWARD)


@case("pipe.shapes.inferred", requires=NEEDS, axes={"schedule": tuple(SCHEDULES)}, world_size=2)
def test_inferred(check, device, schedule, rank, world_size, group):
    """Each batch has another shape, which the stages find out as it comes: their gradients add up over all batches."""
    from torch.distributed import pipelining

    batches = tensors(BATCHES)
    exact, losses = sequential(world_size, batches)
    module = layer(rank).to(device)

    found = []
    for batch in batches:
        # A schedule keeps the shapes of its first batch, so every batch has its own.
        kind = getattr(pipelining, SCHEDULES[schedule])
        made = kind(stage_of(module, rank, world_size, device), 3, loss_fn=_loss, scale_grads=False)
        batch = batch.to(device)
        found.append(step(made, batch, batch, rank, world_size - 1))

    check_stage(check, module, exact, rank)
    if rank == world_size - 1:
        sums = torch.stack([torch.stack(each).sum() for each in found])
        near(check, "the losses", sums, torch.stack(losses), Near.FORWARD)


def _loss(output, target):
    del target
    return loss_of(output)
