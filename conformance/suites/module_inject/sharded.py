"""Transformer blocks of four families of models, whole on the host, and cut over ranks as an injection cuts them.

The weights of a head are drawn by head, and packed as the family stores them. The ranks cut the packed weights by views
of the device's tensors, so that packing and cutting share nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional as F

HEADS, WIDTH, HIDDEN, MIDDLE = 4, 8, 32, 44
TOKENS, BATCH = 5, 2


@dataclass(frozen=True)
class Family:
    """What a family of models does differently. ``pairs`` is the number of heads of keys and values."""

    name: str
    pairs: int = HEADS
    bias: bool = False
    parallel: bool = False
    gated: bool = False

    @property
    def has_attention_bias(self):
        return self.name == "bloom"


FAMILIES = {
    family.name: family
    for family in (
        # queries, keys and values follow each other within a head; ALiBi
        Family("bloom", bias=True),
        # three matrices; attention and network read the same norm, and are summed together
        Family("gpt_j", bias=True, parallel=True),
        # one head of keys and values for all heads of queries, behind them
        Family("falcon", pairs=1, parallel=True),
        # two heads of keys and values for four heads of queries; a gate
        Family("llama", pairs=2, gated=True),
    )
}


def drawn(family):
    """Return weights by head, of float64 values that float32 represents."""
    generator = torch.Generator().manual_seed(len(family.name) + 10 * family.pairs)

    def numbers(*shape, size=0.25):
        return (size * torch.randn(shape, generator=generator)).double()

    networks = 2 if family.gated else 1
    weights = {
        "query": numbers(HEADS, WIDTH, HIDDEN),
        "key": numbers(family.pairs, WIDTH, HIDDEN),
        "value": numbers(family.pairs, WIDTH, HIDDEN),
        "out": numbers(HIDDEN, HEADS * WIDTH),
        "up": numbers(networks * MIDDLE, HIDDEN),
        "down": numbers(HIDDEN, MIDDLE),
        "norm": 1 + numbers(2, HIDDEN),
    }
    if family.bias:
        weights |= {"up_bias": numbers(MIDDLE), "down_bias": numbers(HIDDEN, size=1.0)}
    if family.has_attention_bias:
        weights |= {name: numbers(HEADS, WIDTH) for name in ("query_bias", "key_bias", "value_bias")}
        weights["out_bias"] = numbers(HIDDEN, size=1.0)
    return weights


def packed(family, weights, suffix=""):
    """Return queries, keys and values as the family stores them, row by row."""
    parts = [weights[f"{name}{suffix}"] for name in ("query", "key", "value")]
    if family.name == "bloom":
        return torch.cat([part[head] for head in range(HEADS) for part in parts])
    return torch.cat([part[head] for part in parts for head in range(len(part))])


def stored(family):
    """Return a block's weights in float32, as a file of the family has them."""
    weights = drawn(family)
    found = {name: weights[name] for name in ("out", "up", "down", "norm")}
    found |= {name: weights[name] for name in ("up_bias", "down_bias", "out_bias") if name in weights}
    found["qkv"] = packed(family, weights)
    if family.has_attention_bias:
        found["qkv_bias"] = packed(family, weights, "_bias")
    return {name: weight.float() for name, weight in found.items()}


def by_head(family, fused):
    """Return views of queries, keys and values by head, of a fused weight or bias on any device."""
    shape = (WIDTH, *fused.shape[1:])
    if family.name == "bloom":
        heads = fused.view(HEADS, 3, *shape)
        return heads[:, 0], heads[:, 1], heads[:, 2]
    heads = fused.view(-1, *shape)
    return heads[:HEADS], heads[HEADS : HEADS + family.pairs], heads[HEADS + family.pairs :]


def cut(family, weights, rank, ranks):
    """Return the rank's part of the weights, and the head of keys for each of its heads of queries.

    A head of keys that several ranks need is on each of them. A bias behind a sum over ranks stays whole.
    """
    own = range(HEADS)[rank * HEADS // ranks : (rank + 1) * HEADS // ranks]
    group = HEADS // family.pairs
    pairs = sorted({head // group for head in own})
    middle = slice(rank * MIDDLE // ranks, (rank + 1) * MIDDLE // ranks)
    part = dict(weights)
    for name in ("qkv", "qkv_bias"):
        if name in weights:
            query, key, value = by_head(family, weights[name])
            taken = [query[own[0] : own[-1] + 1], *(kind[pairs[0] : pairs[-1] + 1] for kind in (key, value))]
            part[name] = torch.cat([kind.flatten(0, 1) for kind in taken])
    heads = weights["out"].view(HIDDEN, HEADS, WIDTH)
    part["out"] = heads[:, own[0] : own[-1] + 1].flatten(1).contiguous()
    part["up"] = weights["up"].view(-1, MIDDLE, HIDDEN)[:, middle].flatten(0, 1).contiguous()
    part["down"] = weights["down"][:, middle].contiguous()
    if family.bias:
        part["up_bias"] = weights["up_bias"][middle]
    return part, [head // group - pairs[0] for head in own], own


def block(family, weights, x, summed=lambda part: part, *, heads=range(HEADS), pairs=None):
    """Return the output of a block whose queries come first, by these heads, (batch, tokens, hidden).

    ``pairs`` has the head of keys for each head of queries; ``summed`` adds a partial product over ranks.
    """
    pairs = [head * family.pairs // HEADS for head in heads] if pairs is None else pairs
    attended = attention(family, weights, normed(family, x, weights["norm"][0]), heads, pairs)
    if family.parallel:
        both = attended + network(family, weights, normed(family, x, weights["norm"][0]))
        return x + with_bias(summed(both), weights, "down_bias")
    x = x + with_bias(summed(attended), weights, "out_bias")
    return x + with_bias(summed(network(family, weights, normed(family, x, weights["norm"][1]))), weights, "down_bias")


def normed(family, x, weight):
    if family.gated:
        return F.rms_norm(x, (HIDDEN,), weight, 1e-5)
    return F.layer_norm(x, (HIDDEN,), weight, None, 1e-5)


def with_bias(x, weights, name):
    return x + weights[name] if name in weights else x


def attention(family, weights, x, heads, pairs):
    """Return the product of the heads' attention, before it is summed over ranks and before its bias."""
    number = max(pairs) + 1
    fused = F.linear(x, weights["qkv"], weights.get("qkv_bias")).unflatten(-1, (-1, WIDTH)).transpose(1, 2)
    query, key, value = fused.split([len(heads), number, number], dim=1)
    if family.name != "bloom":
        query, key = (rotated(family, part) for part in (query, key))
    scores = query @ key[:, pairs].transpose(-1, -2) * WIDTH**-0.5
    places = torch.arange(TOKENS, device=x.device)
    if family.name == "bloom":
        slopes = torch.tensor([2.0 ** (-8.0 * (head + 1) / HEADS) for head in heads], dtype=x.dtype, device=x.device)
        scores = scores + slopes[:, None, None] * places.to(x.dtype)
    scores = scores.masked_fill(places[None] > places[:, None], float("-inf"))
    mixed = scores.softmax(-1) @ value[:, pairs]
    return F.linear(mixed.transpose(1, 2).flatten(2), weights["out"])


def rotated(family, x):
    """Return ``x`` with rotary positions: of neighbours in the first half of a head, or of both halves of it."""
    turned = x[..., : WIDTH // 2] if family.name == "gpt_j" else x
    half = turned.shape[-1] // 2
    angles = torch.arange(TOKENS, dtype=torch.float64)[:, None] * 10000.0 ** (-torch.arange(half).double() / half)
    cos, sin = (part.to(x.dtype).to(x.device) for part in (angles.cos(), angles.sin()))
    if family.name == "gpt_j":
        even, odd = turned[..., ::2], turned[..., 1::2]
        pairs = torch.stack([even * cos - odd * sin, odd * cos + even * sin], dim=-1)
        return torch.cat([pairs.flatten(-2), x[..., WIDTH // 2 :]], dim=-1)
    low, high = turned.chunk(2, dim=-1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)


def network(family, weights, x):
    """Return the network's product, before it is summed over ranks and before its bias."""
    inner = F.linear(x, weights["up"], weights.get("up_bias"))
    if family.gated:
        up, gate = inner.chunk(2, dim=-1)
        return F.linear(up * F.silu(gate), weights["down"])
    return F.linear(F.gelu(inner), weights["down"])


def whole_output(family, x):
    """Return the output of the whole block in float64 on the host, with the weights as they were drawn, by head."""
    weights = drawn(family)
    kinds = ("query", "key", "value")
    ordered = {name: weight for name, weight in weights.items() if name.partition("_")[0] not in kinds}
    ordered["qkv"] = torch.cat([weights[kind].flatten(0, 1) for kind in kinds])
    if family.has_attention_bias:
        ordered["qkv_bias"] = torch.cat([weights[f"{kind}_bias"].flatten() for kind in kinds])
    return block(family, ordered, x.double())
