"""Initial values of parameters that show whether a device reads them."""

from __future__ import annotations

import torch
from torch import nn


@torch.no_grad()
def spread(tensor: torch.Tensor, deviation: float) -> None:
    """Give a constant parameter or buffer small random differences: zeros and ones would hide that it is not read."""
    if bool((tensor == tensor.flatten()[0]).all()):
        tensor.add_(deviation * torch.randn_like(tensor))


def spread_constants(module: nn.Module, deviation: float = 0.1) -> None:
    """Spread each constant parameter of a module, such as the weights and biases of its norms."""
    for parameter in module.parameters():
        if parameter.requires_grad:
            spread(parameter, deviation)
