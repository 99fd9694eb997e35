"""A small model, its data, and its float64 reference training in one process."""

from __future__ import annotations

import torch
from torch import nn

from conformance.suites.parameters import spread_constants

#: The batch size is a multiple of every world size of these cases.
BATCH, STEPS = 12, 4


class Model(nn.Module):
    """Model of two products, a normalisation and a smooth nonlinearity, with sizes that no world size divides."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(11, 19), nn.LayerNorm(19), nn.Linear(19, 5)
        spread_constants(self.norm)

    def forward(self, x):
        return self.second(nn.functional.gelu(self.norm(self.first(x))))


def model(seed=0):
    """Return a new model on the host in float32, with the initial weights of that seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Model()


def batch(step):
    """Return inputs (BATCH, 11) and targets (BATCH, 5) of one step for all ranks together."""
    generator = torch.Generator().manual_seed(1000 + step)
    return torch.randn(BATCH, 11, generator=generator), torch.randn(BATCH, 5, generator=generator)


def part(tensor, rank, world_size):
    """Return the rank's rows of the tensor."""
    return tensor.chunk(world_size)[rank]


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


#: Adam divides by the root of squared gradients. With the usual small epsilon, a tiny gradient would be scaled up
#: together with its rounding error.
ADAM = {"lr": 0.01, "eps": 1e-3, "weight_decay": 0.01}


def adam(parameters):
    return torch.optim.AdamW(parameters, **ADAM)


def loss_of(trained, inputs, targets):
    return nn.functional.mse_loss(trained(inputs), targets)


def reference(make_optimizer=sgd, steps=STEPS, clip=None):
    """Return the model after ``steps`` whole batches in float64 on the host, and its gradient norms before clipping."""
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
    """Return a copy on the host of the full tensor. It is a collective for a sharded tensor."""
    tensor = tensor.detach()
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).cpu().clone()


def weights(trained):
    """Return full weights by the names of the unwrapped model. All ranks have to call it."""
    return {name.removeprefix("module."): whole(value) for name, value in trained.named_parameters()}
