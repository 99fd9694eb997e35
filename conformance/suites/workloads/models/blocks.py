"""Pre-norm transformer block that the language model and the vision transformer share."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

#: Keys and values of the positions already seen: two tensors of shape (batch, heads, positions, head width).
Cache = tuple[torch.Tensor, torch.Tensor]


class Attention(nn.Module):
    """Multi-head self-attention; ``causal`` hides later positions.

    Queries and keys have no bias. Softmax cancels a key's bias, so its gradient is only rounding noise. Adam would
    scale that noise up to full steps, which differ between devices.
    """

    def __init__(self, width: int, heads: int, *, causal: bool, dropout: float) -> None:
        super().__init__()
        self.heads, self.causal, self.dropout = heads, causal, dropout
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, cache: Cache | None = None) -> tuple[torch.Tensor, Cache]:
        """Return the output (batch, positions, width) and the new cache.

        ``x`` is (batch, positions, width). With a ``cache``, ``x`` holds exactly one new position.
        """
        q, k, v = (self._split(part) for part in self.qkv(x).chunk(3, dim=-1))
        if cache is not None:
            k, v = torch.cat((cache[0], k), dim=2), torch.cat((cache[1], v), dim=2)
        # One new position may attend to all cached ones; a causal mask would hide all but the first.
        masked = self.causal and cache is None
        drop = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=drop, is_causal=masked)
        return self.out(mixed.transpose(1, 2).flatten(2)), (k, v)

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class Block(nn.Module):
    """Attention and a GELU network, each after a LayerNorm and with a residual connection."""

    def __init__(self, width: int, heads: int, *, causal: bool, dropout: float) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal=causal, dropout=dropout)
        self.norm_network = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, cache: Cache | None = None) -> tuple[torch.Tensor, Cache]:
        """Return the output (batch, positions, width) and the new cache."""
        mixed, cache = self.attention(self.norm_attention(x), cache)
        x = x + self.drop(mixed)
        return x + self.drop(self.down(F.gelu(self.up(self.norm_network(x))))), cache
