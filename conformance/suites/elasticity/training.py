"""Training whose global batch stays the same for every number of ranks, and its checkpoints of device tensors."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from conformance.suites.runtime.training import adam, batch, loss_of, model

#: Samples of each step, which all numbers of ranks from 1 to 4 divide, and of a micro-batch.
GLOBAL, MICRO = 12, 2
STEPS = 3


def accumulation(world_size):
    """Return the micro-batches of each rank in a step."""
    return GLOBAL // (MICRO * world_size)


class Trainer:
    """A model on the device that the ranks of ``group`` train together, each on its micro-batches."""

    def __init__(self, device, group):
        self.device, self.group = device, group
        self.size, self.place = dist.get_world_size(group), dist.get_rank(group)
        self.model = model().to(device)
        self.optimizer, self.step = adam(self.model.parameters()), 0

    def train(self):
        """Take one step; return the loss of the whole batch on the host."""
        inputs, targets = batch(self.step)
        parts = list(zip(inputs.split(MICRO), targets.split(MICRO), strict=True))
        count = accumulation(self.size)
        total = torch.zeros((), device=self.device)
        self.optimizer.zero_grad()
        for part in parts[self.place * count : (self.place + 1) * count]:
            loss = loss_of(self.model, *(tensor.to(self.device) for tensor in part)) * (MICRO / GLOBAL)
            loss.backward()
            total += loss.detach()
        dist.all_reduce(total, group=self.group)
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad, group=self.group)
        self.optimizer.step()
        self.step += 1
        return total.cpu()

    def save(self, path):
        """Write model, optimizer and step, with the device's tensors as they are."""
        torch.save((self.model.state_dict(), self.optimizer.state_dict(), self.step), path)

    def load(self, path):
        """Go on from a file."""
        weights, state, self.step = torch.load(path, map_location=self.device, weights_only=True)
        self.model.load_state_dict(weights)
        self.optimizer.load_state_dict(state)


def curve(steps):
    """Return the losses of training in one process in float64, and the model at the end."""
    exact = model().double()
    optimizer, losses = adam(exact.parameters()), []
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(exact, *(tensor.double() for tensor in batch(step)))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses, exact


def other_start(trainer):
    """Spoil the weights of a new trainer, so that only what is loaded can make them right."""
    for parameter in trainer.model.parameters():
        nn.init.constant_(parameter, 7.0)
