"""A program for `conformance blame`: a function that gets a device, and returns what is to be compared."""

import torch
from torch import nn


def train(device):
    """Train two layers for two steps; return the losses, the gradients and the parameters."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.SiLU(), nn.LayerNorm(8), nn.Linear(8, 4)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, labels = torch.randn(5, 6).to(device), torch.tensor([0, 1, 2, 3, 0]).to(device)
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        losses.append(nn.functional.cross_entropy(model(x), labels))
        losses[-1].backward()
        optimizer.step()
    return {"loss": losses, "model": model}
