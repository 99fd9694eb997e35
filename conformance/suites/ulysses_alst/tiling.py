"""A tile of the tokens at a time, computed again for its gradient (Bekman et al., 2025, arXiv:2506.13996)."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

#: Targets that do not count, as PyTorch's cross-entropy has them.
IGNORED = -100


class Network(nn.Module):
    """A gated network, (tokens, width) to the same."""

    def __init__(self, width, middle):
        super().__init__()
        self.gate, self.up = nn.Linear(width, middle, bias=False), nn.Linear(width, middle, bias=False)
        self.down = nn.Linear(middle, width)

    def forward(self, x):
        return self.down(functional.silu(self.gate(x)) * self.up(x))


def tiled(function, x, tile):
    """``function`` of (tokens, width), ``tile`` tokens at a time: nothing inside it is kept."""
    from torch.utils import checkpoint

    return torch.cat([checkpoint.checkpoint(function, one, use_reentrant=False) for one in x.split(tile)])


def loss_sum(hidden, head, targets):
    """The cross-entropy of all tokens that count, added; logits are made and judged in float32."""
    return functional.cross_entropy((hidden @ head.t()).float(), targets, reduction="sum", ignore_index=IGNORED)


def tiled_loss_sum(hidden, head, targets, tile):
    """The same, with the logits of ``tile`` tokens at a time."""
    from torch.utils import checkpoint

    parts = [
        checkpoint.checkpoint(loss_sum, rows, head, some, use_reentrant=False)
        for rows, some in zip(hidden.split(tile), targets.split(tile), strict=True)
    ]
    return torch.stack(parts).sum()
