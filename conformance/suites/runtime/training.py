"""A small model, its data, and one process in float64 that the engines' ranks are held against."""

from __future__ import annotations

import torch
from torch import nn

#: Divided by all world sizes of these cases.
BATCH, STEPS = 12, 4


class Model(nn.Module):
    """Products, a normalisation and smooth nonlinearities, with lengths that no number of ranks divides."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(11, 19), nn.LayerNorm(19), nn.Linear(19, 5)

    def forward(self, x):
        return self.second(nn.functional.gelu(self.norm(self.first(x))))


def model(seed=0):
    """The weights every run starts from, float32 on the host."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Model()


def batch(step):
    """Inputs and targets of one step, for all ranks together."""
    generator = torch.Generator().manual_seed(1000 + step)
    return torch.randn(BATCH, 11, generator=generator), torch.randn(BATCH, 5, generator=generator)


def part(tensor, rank, world_size):
    """This rank's rows."""
    return tensor.chunk(world_size)[rank]


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


#: Adam divides by roots of squares; with a large epsilon small gradients do not become their rounding.
ADAM = {"lr": 0.01, "eps": 1e-3, "weight_decay": 0.01}


def adam(parameters):
    return torch.optim.AdamW(parameters, **ADAM)


def loss_of(trained, inputs, targets):
    return nn.functional.mse_loss(trained(inputs), targets)


def reference(make_optimizer=sgd, steps=STEPS, clip=None):
    """The model after ``steps`` whole batches in float64 on the host, and gradient norms before clipping."""
    trained = model().double()
    optimizer, norms = make_optimizer(trained.parameters()), []
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(trained, *(tensor.double() for tensor in batch(step))).backward()
        if clip is not None:
            norms.append(nn.utils.clip_grad_norm_(trained.parameters(), clip))
        optimizer.step()
    return trained, norms


def whole(tensor):
    """A copy on the host of the full tensor behind a sharded one."""
    tensor = tensor.detach()
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).cpu().clone()


def weights(trained):
    """Full weights by the names of the plain model. All ranks call it."""
    return {name.removeprefix("module."): whole(value) for name, value in trained.named_parameters()}
