"""Recommender: bags of clicked items with sparse gradients, products of features, and a small network."""

from __future__ import annotations

import itertools

import torch
from torch import nn

ITEMS, USERS, WIDTH, NUMBERS = 200, 50, 16, 8


class Recommender(nn.Module):
    """Model of clicks, in the form of DLRM: embeddings, products of pairs, and two networks."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.EmbeddingBag(ITEMS, WIDTH, mode="sum", sparse=True)
        self.history = nn.EmbeddingBag(ITEMS, WIDTH, mode="mean", padding_idx=0, sparse=True)
        self.users = nn.Embedding(USERS, WIDTH, sparse=True)
        self.numbers = nn.Sequential(nn.Linear(NUMBERS, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        self.top = nn.Sequential(nn.Linear(WIDTH + 6, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(
        self,
        clicked: torch.Tensor,
        weights: torch.Tensor,
        history: torch.Tensor,
        user: torch.Tensor,
        numbers: torch.Tensor,
    ) -> torch.Tensor:
        """Return one logit for each row; ``clicked`` and ``history`` are bags of items, ``weights`` those of clicks."""
        dense = self.numbers(numbers)
        # Tables have the dtype of their weights under autocast; the others have a narrow one.
        table = self.items.weight.dtype
        found = [
            dense,
            self.items(clicked, per_sample_weights=weights.to(table)).to(dense.dtype),
            self.history(history).to(dense.dtype),
            self.users(user).to(dense.dtype),
        ]
        pairs = [(left * right).sum(-1, keepdim=True) for left, right in itertools.combinations(found, 2)]
        return self.top(torch.cat([dense, *pairs], dim=-1)).squeeze(-1)
