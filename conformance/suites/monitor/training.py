"""A training run on the device that logs what a monitor shows, and the same numbers computed on the host."""

from __future__ import annotations

import math

import torch
from torch import nn

STEPS, BATCH = 6, 12


class Model(nn.Module):
    """Two products with a smooth nonlinearity between them, of sizes that are no powers of two."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(11, 19), nn.Linear(19, 5)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


def model(dtype=torch.float32):
    """Return a model on the host, with the same weights in every process."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Model().to(dtype)


def batch(step, part=0):
    """Return inputs (BATCH, 11) and targets (BATCH, 5) of one step and one part of the data."""
    generator = torch.Generator().manual_seed(100 * step + part)
    return torch.randn(BATCH, 11, generator=generator), torch.randn(BATCH, 5, generator=generator)


def rate(step):
    """Return the learning rate of a step, which falls like a cosine."""
    return 0.05 * (1 + math.cos(math.pi * step / STEPS)) / 2


def loss_and_norm(trained, inputs, targets):
    """Run forward and backward; return the loss and the norm of all gradients, both where the model is."""
    trained.zero_grad(set_to_none=True)
    loss = nn.functional.mse_loss(trained(inputs), targets)
    loss.backward()
    norm = torch.linalg.vector_norm(torch.stack([p.grad.float().norm() for p in trained.parameters()]))
    return loss.detach(), norm


def numbers_on_host(weights, step, dtype, part=0):
    """Return loss and norm in float64 for these weights and the step's data as ``dtype`` rounds them."""
    exact = model().double()
    exact.load_state_dict({name: value.cpu().double() for name, value in weights.items()})
    loss, _ = loss_and_norm(exact, *(tensor.to(dtype).double() for tensor in batch(step, part)))
    gradients = torch.cat([parameter.grad.flatten() for parameter in exact.parameters()])
    return loss, gradients.square().sum().sqrt()


def steps_on_device(device, dtype=torch.float32, steps=STEPS):
    """Train on the device; yield the step, its weights before the update on the host, its loss, norm and rate."""
    trained = model(dtype).to(device)
    optimizer = torch.optim.SGD(trained.parameters(), lr=rate(0), momentum=0.5)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step) / rate(0))
    for step in range(steps):
        before = {name: value.detach().cpu().clone() for name, value in trained.state_dict().items()}
        inputs, targets = (tensor.to(device=device, dtype=dtype) for tensor in batch(step))
        loss, norm = loss_and_norm(trained, inputs, targets)
        yield step, before, loss, norm, schedule.get_last_lr()[0]
        optimizer.step()
        schedule.step()
