"""Layers of unequal width, ways to cut them into stages, and a pipeline of the stages of one rank."""

from __future__ import annotations

import contextlib
import io
import itertools

import torch
import torch.distributed as dist
from torch import nn

#: Widths before and after each layer. Neighbouring stages exchange tensors of unequal width.
WIDTHS = (10, 14, 6, 9, 12, 16, 5, 11, 10)
LAYERS = len(WIDTHS) - 1
BATCH, MICRO = 12, 6
#: Schedules with one stage on each rank; with two, a world apart; and with two, as far from the ends of a V.
SINGLE = {"gpipe": "ScheduleGPipe", "1f1b": "Schedule1F1B"}
LOOPED = {
    "interleaved": "ScheduleInterleaved1F1B",
    "looped-bfs": "ScheduleLoopedBFS",
    "interleaved-zero-bubble": "ScheduleInterleavedZeroBubble",
}
V_SHAPED = {"zbv-zero-bubble": "ScheduleZBVZeroBubble", "dual-pipe-v": "ScheduleDualPipeV"}
ALL = SINGLE | LOOPED | V_SHAPED


def layer(number, seed=0):
    """Return one layer with its initial weights, which depend on its number and the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1000 * seed + number)
        return nn.Sequential(nn.Linear(WIDTHS[number], WIDTHS[number + 1]), nn.Tanh())


def whole(seed=0):
    """Return all layers in float64 on the host."""
    return nn.Sequential(*(layer(number, seed) for number in range(LAYERS))).double()


def data(number, rows=BATCH):
    """Return inputs and targets of one batch on the host."""
    generator = torch.Generator().manual_seed(90 + number)
    return torch.randn(rows, WIDTHS[0], generator=generator), torch.randn(rows, WIDTHS[-1], generator=generator)


def loss_of(output, target):
    return nn.functional.mse_loss(output, target)


def adam(parameters):
    # With a small epsilon, Adam would scale a rounding error up to the size of a step.
    return torch.optim.AdamW(parameters, lr=0.01, eps=1e-3, weight_decay=0.01)


def trained(steps, first=0, model=None):
    """Return the whole model after some steps in float64, and the losses of its steps."""
    model = model or whole()
    optimizer, losses = adam(model.parameters()), []
    for number in range(first, first + steps):
        optimizer.zero_grad()
        loss = loss_of(model(data(number)[0].double()), data(number)[1].double())
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return model, losses


# --- partitions -------------------------------------------------------------------------------------------------------


def evenly(stages):
    """Return the first layer of each stage, and the number of layers: stages with equal numbers of layers."""
    return [LAYERS * stage // stages for stage in range(stages + 1)]


def balanced(costs, stages):
    """Return bounds of stages whose largest cost is the least possible.

    ``costs`` has a number for each layer. The least bottleneck is found by bisection; then stages fill up in order.
    """
    low, high = max(costs), sum(costs)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _stages_needed(costs, middle) <= stages else (middle + 1, high)
    bounds, load = [0], 0
    for number, cost in enumerate(costs):
        left, wanted = len(costs) - number, stages - len(bounds)
        if number > bounds[-1] and (load + cost > low or left == wanted):
            bounds.append(number)
            load = 0
        load += cost
    return [*bounds, len(costs)]


def _stages_needed(costs, most):
    count, load = 1, 0
    for cost in costs:
        if load + cost > most:
            count, load = count + 1, 0
        load += cost
    return count


def least_bottleneck(costs, stages):
    """Return the largest cost of a stage in the best of all partitions, found by trying all."""
    cuts = itertools.combinations(range(1, len(costs)), stages - 1)
    return min(bottleneck(costs, [0, *cut, len(costs)]) for cut in cuts)


def bottleneck(costs, bounds):
    return max(sum(costs[first:last]) for first, last in itertools.pairwise(bounds))


# --- a pipeline -------------------------------------------------------------------------------------------------------


class Pipeline:
    """Stages of one rank. ``bounds`` are the first layers of all stages, and the number of layers."""

    def __init__(self, device, schedule, bounds, group=None, *, seed=0, micro=MICRO, wrap=None):
        from torch.distributed import pipelining
        from torch.distributed.pipelining import schedules

        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        count = len(bounds) - 1
        numbers = [rank]
        if schedule in LOOPED:
            numbers = [rank, rank + ranks]
        elif schedule in V_SHAPED:
            numbers = [rank, count - 1 - rank]
        self.layers = {number: layer(number, seed).to(device)
                       for stage in numbers for number in range(bounds[stage], bounds[stage + 1])}  # fmt: skip
        self.first, self.last = 0 in numbers, count - 1 in numbers
        stages = []
        for stage in numbers:
            module = nn.Sequential(*(self.layers[number] for number in range(bounds[stage], bounds[stage + 1])))
            stages.append(pipelining.PipelineStage(wrap(module) if wrap else module, stage, count, device, group=group))
        kind = getattr(schedules, ALL[schedule])
        self.schedule = kind(stages if len(stages) > 1 else stages[0], micro, loss_fn=loss_of)
        self.device = device

    def parameters(self):
        return [parameter for module in self.layers.values() for parameter in module.parameters()]

    def step(self, inputs, targets):
        """Run one batch forward and backward; return the losses of its micro-batches, none but on the last rank."""
        losses, given = [], (inputs.to(self.device),) if self.first else ()
        wanted = {"target": targets.to(self.device), "losses": losses} if self.last else {}
        with contextlib.redirect_stdout(io.StringIO()):  # some schedules print their order
            self.schedule.step(*given, **wanted)
        return losses
