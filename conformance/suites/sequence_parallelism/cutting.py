"""Inputs of the attention cases, and exchanges of sequences and heads between the ranks."""

from __future__ import annotations

import math

import torch

from conformance.suites.rank_functions import Group

SIZE = 4


def tensors(tokens, heads, key_heads=None):
    """Return random queries (heads, tokens, SIZE), and keys and values (key heads, tokens, SIZE)."""
    generator = torch.Generator().manual_seed(tokens + heads)
    counts = (heads, key_heads or heads, key_heads or heads)
    return [torch.randn(count, tokens, SIZE, generator=generator) for count in counts]


def attention(query, key, value, first=0):
    """Return causal attention, (heads, queries, SIZE), where the first query is at position ``first``."""
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    return torch.softmax(scores.masked_fill(later(query, key, first, 0), -math.inf), dim=-1) @ value


def heads_for(x, heads):
    """Repeat each head of ``x`` (…, own heads, tokens, size) for its group of consecutive query heads."""
    return x.repeat_interleave(heads // x.shape[-3], dim=-3)


def later(query, key, query_first, key_first):
    """Return a mask (queries, keys) that is true where a key is later than a query."""
    rows = torch.arange(query.shape[-2], device=query.device) + query_first
    columns = torch.arange(key.shape[-2], device=key.device) + key_first
    return columns > rows.unsqueeze(-1)


def shares(count, ranks):
    """Return how many of ``count`` elements each rank has; the first ranks get the remainder."""
    return [count // ranks + (rank < count % ranks) for rank in range(ranks)]


def to_heads(x, rank, ranks, tokens, heads):
    """Return (own heads, all tokens, SIZE) of a tensor that is (all heads, own tokens, SIZE)."""
    by_head, by_token = shares(heads, ranks), shares(tokens, ranks)
    taken = [by_head[rank] * length for length in by_token]
    given = [number * by_token[rank] for number in by_head]
    rows = Group.of_all().exchanged(x.reshape(-1, SIZE), given, taken)
    parts = rows.split(taken)
    return torch.cat([part.view(by_head[rank], -1, SIZE) for part in parts], dim=1)


def to_tokens(x, rank, ranks, tokens, heads):
    """Return (all heads, own tokens, SIZE) of a tensor that is (own heads, all tokens, SIZE)."""
    by_head, by_token = shares(heads, ranks), shares(tokens, ranks)
    given = [by_head[rank] * length for length in by_token]
    taken = [number * by_token[rank] for number in by_head]
    rows = torch.cat([part.reshape(-1, SIZE) for part in x.split(by_token, dim=1)])
    return Group.of_all().exchanged(rows, given, taken).view(heads, by_token[rank], SIZE)


def keys_to_heads(x, rank, ranks, tokens, heads):
    """Return (own query heads, all tokens, SIZE) of keys that are (key heads, own tokens, SIZE).

    A rank receives each key head once that its query heads share, also where other ranks need the same one. The
    gradient of a key head is the sum over these ranks.
    """
    group, by_token = heads // x.shape[0], shares(tokens, ranks)
    own = torch.arange(heads, device=x.device).split(shares(heads, ranks))
    needed = [torch.unique(queries // group) for queries in own]
    given = [len(keys) * by_token[rank] for keys in needed]
    taken = [len(needed[rank]) * length for length in by_token]
    rows = Group.of_all().exchanged(x[torch.cat(needed)].reshape(-1, SIZE), given, taken)
    keys = torch.cat([part.view(len(needed[rank]), -1, SIZE) for part in rows.split(taken)], dim=1)
    return keys[own[rank] // group - needed[rank][0]]


def ring_attention(query, key, value, rank, ranks, tokens):
    """Return causal attention of own queries to all keys, which travel in blocks around the ring.

    ``query`` is (heads, own tokens, SIZE); ``key`` and ``value`` are (key heads, own tokens, SIZE). The ranks have
    ``shares(tokens, ranks)`` tokens. Liu et al., 2023, arXiv:2310.01889.
    """
    by_token = shares(tokens, ranks)
    both, parts = torch.stack([key, value]), []
    for step in range(ranks):
        owner = (rank - step) % ranks
        k, v = (heads_for(block, query.shape[0]) for block in both)
        hidden = later(query, k, sum(by_token[:rank]), sum(by_token[:owner]))
        scores = (query @ k.transpose(-1, -2) / math.sqrt(query.shape[-1])).masked_fill(hidden, -math.inf)
        parts.append((scores, v))
        if step < ranks - 1:
            both = Group.of_all().shifted(both, (*both.shape[:2], by_token[(owner - 1) % ranks], SIZE))
    # The softmax over all blocks, with the largest score subtracted so that exp() does not overflow.
    largest = torch.stack([scores.amax(-1) for scores, _ in parts]).amax(0).unsqueeze(-1).detach()
    total = sum(torch.exp(scores - largest).sum(-1, keepdim=True) for scores, _ in parts)
    return sum(torch.exp(scores - largest) @ v for scores, v in parts) / total
