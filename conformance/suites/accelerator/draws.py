"""Random functions that the rng cases call: ``draw(count, device)`` returns ``count`` numbers."""

from __future__ import annotations

import torch

DRAWS = {
    "bernoulli": lambda n, device: torch.bernoulli(torch.full((n,), 0.5, device=device)),
    "dropout": lambda n, device: torch.nn.functional.dropout(torch.ones(n, device=device), 0.5),
    "exponential": lambda n, device: torch.empty(n, device=device).exponential_(),
    "multinomial": lambda n, device: torch.multinomial(torch.ones(97, device=device), n, replacement=True),
    "normal": lambda n, device: torch.empty(n, device=device).normal_(2.0, 3.0),
    "rand": lambda n, device: torch.rand(n, device=device),
    "randint": lambda n, device: torch.randint(0, 1000, (n,), device=device),
    "randn": lambda n, device: torch.randn(n, device=device),
    "randperm": lambda n, device: torch.randperm(n, device=device),
    "uniform": lambda n, device: torch.empty(n, device=device).uniform_(-1.0, 1.0),
}


def differing(left: torch.Tensor, right: torch.Tensor) -> int:
    """Return the number of elements that differ; all elements count if the shapes differ."""
    if left.shape != right.shape:
        return max(left.numel(), right.numel())
    return int((left.cpu() != right.cpu()).sum())
