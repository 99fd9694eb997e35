"""Tiled computation that recomputes each tile for its gradient (Bekman et al., 2025, arXiv:2506.13996)."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

#: Target of tokens that do not count: the default ignore_index of PyTorch's cross-entropy.
IGNORED = -100


class Network(nn.Module):
    """Gated network that maps (tokens, width) to (tokens, width)."""

    def __init__(self, width, middle):
        super().__init__()
        self.gate, self.up = nn.Linear(width, middle, bias=False), nn.Linear(width, middle, bias=False)
        self.down = nn.Linear(middle, width)

    def forward(self, x):
        return self.down(functional.silu(self.gate(x)) * self.up(x))


def tiled(function, x, tile):
    """Return ``function`` of ``x`` (tokens, width), computed ``tile`` tokens at a time; inner results are not kept."""
    from torch.utils import checkpoint

    return torch.cat([checkpoint.checkpoint(function, rows, use_reentrant=False) for rows in x.split(tile)])


def loss_sum(hidden, head, targets):
    """Return the summed cross-entropy of all tokens that are not ignored; logits are converted to float32."""
    return functional.cross_entropy((hidden @ head.t()).float(), targets, reduction="sum", ignore_index=IGNORED)


def tiled_loss_sum(hidden, head, targets, tile):
    """Return loss_sum(), computed with the logits of ``tile`` tokens at a time."""
    from torch.utils import checkpoint

    parts = [
        checkpoint.checkpoint(loss_sum, rows, head, labels, use_reentrant=False)
        for rows, labels in zip(hidden.split(tile), targets.split(tile), strict=True)
    ]
    return torch.stack(parts).sum()
