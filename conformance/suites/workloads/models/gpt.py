"""GPT-style language model: learned positions, causal blocks, a final norm and an untied head."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from conformance.suites.parameters import spread_constants

from .blocks import Block, Cache


@dataclass(frozen=True)
class GPTShape:
    """Sizes of the language model; ``context`` is the largest number of positions."""

    vocabulary: int = 128
    context: int = 64
    width: int = 64
    heads: int = 4
    layers: int = 2


class GPT(nn.Module):
    """Decoder-only language model over byte tokens."""

    def __init__(self, shape: GPTShape, dropout: float = 0.0) -> None:
        super().__init__()
        self.shape = shape
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(
            Block(shape.width, shape.heads, causal=True, dropout=dropout) for _ in range(shape.layers)
        )
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        for table in (self.tokens, self.positions):
            nn.init.normal_(table.weight, std=0.02)
        spread_constants(self)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits (batch, positions, vocabulary) of int64 ``tokens`` (batch, positions)."""
        return self.step(tokens, None)[0]

    def step(self, tokens: torch.Tensor, caches: list[Cache] | None) -> tuple[torch.Tensor, list[Cache]]:
        """Return logits and caches: of a whole prompt without ``caches``, of one more position with them."""
        seen = 0 if caches is None else caches[0][0].shape[2]
        positions = torch.arange(seen, seen + tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(positions)
        kept: list[Cache] = []
        for index, block in enumerate(self.blocks):
            x, cache = block(x, None if caches is None else caches[index])
            kept.append(cache)
        return self.head(self.norm(x)), kept
