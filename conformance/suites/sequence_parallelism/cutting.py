"""Inputs of the attention cases, and collectives with gradients that shard sequences and heads."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist

SIZE = 4


def tensors(tokens, heads):
    """Return random queries, keys and values, each (heads, tokens, SIZE)."""
    generator = torch.Generator().manual_seed(tokens + heads)
    return [torch.randn(heads, tokens, SIZE, generator=generator) for _ in "qkv"]


def attention(query, key, value, first=0):
    """Return causal attention, (heads, queries, SIZE), where the first query is at position ``first``."""
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    return torch.softmax(scores.masked_fill(later(query, key, first, 0), -math.inf), dim=-1) @ value


def later(query, key, query_first, key_first):
    """Return a mask (queries, keys) that is true where a key is later than a query."""
    rows = torch.arange(query.shape[-2], device=query.device) + query_first
    columns = torch.arange(key.shape[-2], device=key.device) + key_first
    return columns > rows.unsqueeze(-1)


class _Exchange(torch.autograd.Function):
    """All-to-all exchange of rows; gradients travel in the opposite direction."""

    @staticmethod
    def forward(ctx, x, given, taken):
        ctx.sizes = given, taken
        return _exchanged(x, given, taken)

    @staticmethod
    def backward(ctx, gradient):
        given, taken = ctx.sizes
        return _exchanged(gradient, taken, given), None, None


def _exchanged(x, given, taken):
    out = x.new_empty(sum(taken), *x.shape[1:])
    dist.all_to_all_single(out, x.contiguous(), list(taken), list(given))
    return out


def shares(count, ranks):
    """Return how many of ``count`` elements each rank has; the first ranks get the remainder."""
    return [count // ranks + (rank < count % ranks) for rank in range(ranks)]


def to_heads(x, rank, ranks, tokens, heads):
    """Return (own heads, all tokens, SIZE) of a tensor that is (all heads, own tokens, SIZE)."""
    by_head, by_token = shares(heads, ranks), shares(tokens, ranks)
    taken = [by_head[rank] * length for length in by_token]
    given = [number * by_token[rank] for number in by_head]
    rows = _Exchange.apply(x.reshape(-1, SIZE), given, taken)
    parts = rows.split(taken)
    return torch.cat([part.view(by_head[rank], -1, SIZE) for part in parts], dim=1)


def to_tokens(x, rank, ranks, tokens, heads):
    """Return (all heads, own tokens, SIZE) of a tensor that is (own heads, all tokens, SIZE)."""
    by_head, by_token = shares(heads, ranks), shares(tokens, ranks)
    given = [by_head[rank] * length for length in by_token]
    taken = [number * by_token[rank] for number in by_head]
    rows = torch.cat([part.reshape(-1, SIZE) for part in x.split(by_token, dim=1)])
    return _Exchange.apply(rows, given, taken).view(heads, by_token[rank], SIZE)


class _Pass(torch.autograd.Function):
    """Ring shift: send to the next rank, receive from the previous one; gradients travel in the opposite direction."""

    @staticmethod
    def forward(ctx, x):
        return _passed(x, 1)

    @staticmethod
    def backward(ctx, gradient):
        return _passed(gradient, -1)


def _passed(x, step):
    """Send the tensor ``step`` ranks ahead in the ring and return the tensor from ``step`` ranks behind."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    sent, received = x.contiguous(), torch.empty_like(x, memory_format=torch.contiguous_format)
    calls = [
        dist.P2POp(dist.isend, sent, (rank + step) % ranks),
        dist.P2POp(dist.irecv, received, (rank - step) % ranks),
    ]
    for work in dist.batch_isend_irecv(calls):
        work.wait()
    return received


def ring_attention(query, key, value, rank, ranks):
    """Return causal attention of own queries to all keys, which travel in blocks around the ring.

    Liu et al., 2023, arXiv:2310.01889.
    """
    length = query.shape[-2]
    both, parts = torch.stack([key, value]), []
    for step in range(ranks):
        k, v = both
        hidden = later(query, k, rank * length, (rank - step) % ranks * length)
        scores = (query @ k.transpose(-1, -2) / math.sqrt(query.shape[-1])).masked_fill(hidden, -math.inf)
        parts.append((scores, v))
        if step < ranks - 1:
            both = _Pass.apply(both)
    # The softmax over all blocks, with the largest score subtracted so that exp() does not overflow.
    largest = torch.stack([scores.amax(-1) for scores, _ in parts]).amax(0).unsqueeze(-1).detach()
    total = sum(torch.exp(scores - largest).sum(-1, keepdim=True) for scores, _ in parts)
    return sum(torch.exp(scores - largest) @ v for scores, v in parts) / total
