"""Pipeline cases of unequal stages: partition methods, all schedules, numbers of micro-batches, and validation."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from conformance.accelerators.capabilities import COMM_DTYPE, DTYPE
from conformance.numerics.nearness import Near, near
from conformance.plan.case import case

from .pipeline import (
    ALL,
    BATCH,
    LAYERS,
    MICRO,
    SINGLE,
    Pipeline,
    balanced,
    bottleneck,
    data,
    evenly,
    layer,
    least_bottleneck,
    loss_of,
    whole,
)
from .test_schedules import NEEDS

#: Modules that take seconds to import. They are imported once, before the ranks are forked.
RANK_IMPORTS = ("torch._dynamo", "torch.distributed.pipelining")


def exact_gradients():
    """Return the whole model after a backward pass of batch 0 in float64, and its loss."""
    exact = whole()
    loss = loss_of(*_passed(exact))
    loss.backward()
    return exact, loss.detach()


def _passed(exact):
    inputs, targets = (tensor.double() for tensor in data(0))
    return exact(inputs), targets


def check_gradients(check, pipeline, exact, losses, loss):
    """Check the gradients of the rank's layers, and the mean of the losses on the last rank."""
    for number, module in pipeline.layers.items():
        for (name, found), wanted in zip(module.named_parameters(), exact[number].parameters(), strict=True):
            near(check, f"the gradient of layer {number}, {name}", found.grad, wanted.grad, Near.GRADIENTS)
    if pipeline.last:
        near(check, "the loss", torch.stack(losses).mean(), loss, Near.FORWARD)


@case("pipe.unequal", requires=NEEDS, axes={"schedule": tuple(ALL)}, world_size=2)
def test_unequal(check, device, schedule, rank, world_size, group):
    """Each schedule gives one process's loss and gradients, with stages of unequal length and width."""
    bounds = [0, 3, LAYERS] if schedule in SINGLE else [0, 1, 4, 6, LAYERS]
    exact, loss = exact_gradients()
    pipeline = Pipeline(device, schedule, bounds)

    losses = pipeline.step(*data(0))

    check_gradients(check, pipeline, exact, losses, loss)


def costs_of(method):
    """Return the cost of each layer on the device's side of a partition method."""
    if method == "parameters":
        return [sum(value.numel() for value in layer(number).parameters()) for number in range(LAYERS)]
    return [1] * LAYERS


@case("pipe.partition", requires=NEEDS,
      axes={"method": ("uniform", "parameters", "by-hand"), "schedule": tuple(SINGLE)}, world_size=(2, 3))  # fmt: skip
def test_partition(check, device, method, schedule, rank, world_size, group):
    """Stages cut by a method train as one process does, and each rank holds the parameters that the cut gives it."""
    costs = costs_of(method)
    bounds = {
        "uniform": evenly(world_size),
        "parameters": balanced(costs, world_size),
        "by-hand": [0, 1, LAYERS] if world_size == 2 else [0, 5, 6, LAYERS],
    }[method]
    exact, loss = exact_gradients()
    pipeline = Pipeline(device, schedule, bounds)

    losses = pipeline.step(*data(0))
    own = torch.zeros(world_size, device=device)
    own[rank] = sum(parameter.numel() for parameter in pipeline.parameters())
    dist.all_reduce(own)

    check_gradients(check, pipeline, exact, losses, loss)
    sizes = [sum(value.numel() for value in layer(number).parameters()) for number in range(LAYERS)]
    stages = [sum(sizes[bounds[stage] : bounds[stage + 1]]) for stage in range(world_size)]
    check.equal([int(count) for count in own.tolist()], stages, "the parameters of each rank")
    if method != "by-hand":
        least = least_bottleneck(costs, world_size)
        check.equal(bottleneck(costs, bounds), least, "the largest cost of a stage, against all partitions")


@case("pipe.micro", requires=NEEDS,
      axes={"micro": ("2", "3", "4", "12"), "schedule": ("gpipe", "1f1b", "interleaved")}, world_size=2)  # fmt: skip
def test_micro(check, device, micro, schedule, rank, world_size, group):
    """The number of micro-batches changes neither loss nor gradients."""
    stages = 2 if schedule in SINGLE else 4
    count = int(micro)
    if schedule == "interleaved" and count % 2:
        count *= 2  # this schedule takes multiples of the number of ranks only
    exact, loss = exact_gradients()
    pipeline = Pipeline(device, schedule, evenly(stages), micro=count)

    losses = pipeline.step(*data(0))

    check_gradients(check, pipeline, exact, losses, loss)
    if pipeline.last:
        check.equal(len(losses), count, "micro-batches with a loss")
        # Each micro-batch has a loss of its own rows.
        output, targets = _passed(exact)
        rows = zip(output.detach().chunk(count), targets.chunk(count), strict=True)
        for number, (found, (made, wanted)) in enumerate(zip(losses, rows, strict=True)):
            near(check, f"the loss of micro-batch {number}", found, loss_of(made, wanted), Near.FORWARD)


@case("pipe.validation", requires=NEEDS, axes={"schedule": ("gpipe", "1f1b", "interleaved")}, world_size=2)
def test_validation(check, device, schedule, rank, world_size, group):
    """A forward pass alone gives the whole model's output and no gradient, and a training step can follow it."""
    exact, loss = exact_gradients()
    pipeline = Pipeline(device, schedule, evenly(2 if schedule in SINGLE else 4))

    inputs, targets = (tensor.to(device) for tensor in data(1))
    given, seen = (inputs,) if pipeline.first else (), []
    output = pipeline.schedule.eval(*given, **({"target": targets, "losses": seen} if pipeline.last else {}))
    kept = [parameter.grad is not None for parameter in pipeline.parameters()]
    losses = pipeline.step(*data(0))

    check.equal(sum(kept), 0, "parameters with a gradient after a forward pass alone")
    check_gradients(check, pipeline, exact, losses, loss)
    if pipeline.last:
        expected = exact(data(1)[0].double()).detach()
        near(check, "the output", output, expected, Near.FORWARD)
        near(check, "the loss of a forward pass", torch.stack(seen).mean(), loss_of(expected, data(1)[1].double()),
             Near.FORWARD)  # fmt: skip


class Half(nn.Module):
    """Layers in a 16-bit dtype between activations of that dtype."""

    def __init__(self, layers, kind):
        super().__init__()
        self.layers = layers.to(kind)

    def forward(self, x):
        return self.layers(x)


@case("pipe.dtype", requires=[*NEEDS, DTYPE, COMM_DTYPE], axes={"dtype": ("bfloat16", "float16"),
      "schedule": tuple(SINGLE)}, world_size=2)  # fmt: skip
def test_dtype(check, device, dtype, schedule, rank, world_size, group):
    """Stages in 16 bits exchange activations and gradients in 16 bits, and agree with float64."""
    kind = getattr(torch, dtype)
    exact = whole().to(kind).double()
    inputs, targets = (tensor.to(kind) for tensor in data(0))
    magnitudes = [torch.zeros_like(parameter) for parameter in exact.parameters()]
    loss = 0.0
    for rows, wanted in zip(inputs.double().chunk(MICRO), targets.double().chunk(MICRO), strict=True):
        part = loss_of(exact(rows), wanted) / MICRO
        for total, gradient in zip(magnitudes, torch.autograd.grad(part, list(exact.parameters())), strict=True):
            total += gradient.abs()
        loss = loss + part.detach()
    loss_of(exact(inputs.double()), targets.double()).backward()
    largest = {id(parameter): float(sums.max()) for parameter, sums in zip(exact.parameters(), magnitudes, strict=True)}
    pipeline = Pipeline(device, schedule, evenly(2), wrap=lambda layers: Half(layers, kind))

    losses = pipeline.step(inputs, targets)

    for number, module in pipeline.layers.items():
        for (name, found), wanted in zip(module.named_parameters(), exact[number].parameters(), strict=True):
            check.equal(found.grad.dtype, kind, f"the dtype of the gradient of layer {number}, {name}")
            # Gradients of micro-batches cancel; each was rounded to 16 bits.
            near(check, f"the gradient of layer {number}, {name}", found.grad, wanted.grad, Near.GRADIENTS,
                 largest=largest[id(wanted)])  # fmt: skip
    if pipeline.last:
        check.equal(losses[0].dtype, kind, "the dtype of a loss")
        near(check, "the loss", torch.stack(losses).mean(), loss, Near.FORWARD)


class Two(nn.Module):
    """Stage with two inputs or two outputs: rows, and rows that skip the stage before."""

    def __init__(self, layers, first):
        super().__init__()
        self.layers, self.first = layers, first

    def forward(self, x, skipped=None):
        made = self.layers(x)
        return (made, x * 2) if self.first else made + skipped


@case("pipe.skip", requires=NEEDS, axes={"schedule": tuple(SINGLE)}, world_size=2)
def test_skip(check, device, schedule, rank, world_size, group):
    """Two tensors between stages carry values and gradients of both ways through the model."""
    exact = whole()
    inputs, targets = (tensor.double() for tensor in data(0))
    loss = loss_of(exact[4:](exact[:4](inputs)) + inputs * 2, targets)
    loss.backward()
    pipeline = Pipeline(device, schedule, evenly(2), wrap=lambda layers: Two(layers, rank == 0))

    losses = pipeline.step(*data(0))

    check_gradients(check, pipeline, exact, losses, loss.detach())
    check.equal(BATCH % MICRO, 0, "rows beside whole micro-batches")


class Scaled(nn.Module):
    """Stage whose output is multiplied by a factor of each row, which is a keyword argument."""

    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def forward(self, x, factor):
        return self.layers(x) * factor


@case("pipe.keywords", requires=NEEDS, axes={"schedule": tuple(SINGLE)}, world_size=2)
def test_keywords(check, device, schedule, rank, world_size, group):
    """Keyword arguments are cut into micro-batches like the inputs."""
    factor = torch.arange(1.0, BATCH + 1).view(-1, 1) / BATCH
    exact = whole()
    inputs, targets = (tensor.double() for tensor in data(0))
    loss = loss_of(exact[4:](exact[:4](inputs) * factor.double()) * factor.double(), targets)
    loss.backward()
    pipeline = Pipeline(device, schedule, evenly(2), wrap=Scaled)

    losses = []
    wanted = {"target": targets.float().to(device), "losses": losses} if pipeline.last else {}
    given = (inputs.float().to(device),) if pipeline.first else ()
    pipeline.schedule.step(*given, factor=factor.to(device), **wanted)

    check_gradients(check, pipeline, exact, losses, loss.detach())
