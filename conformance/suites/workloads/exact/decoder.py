"""Exact decoder with the modules of a llama, so that every layout of parallel/layouts.py can cut it."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from .families import Linear, ints, whole

#: Sizes: 4 heads, and parts of every matrix, for up to 4 ranks.
WORDS, HIDDEN, HEADS, INNER = 16, 16, 4, 16
#: Distance of two whole scores: no two keys get the same score, because each place adds less than this.
_PLACES = 64.0
#: Part of what a layer adds that it adds once more. It gives the hidden state 9 bits, so that a cut to 8 is seen.
#: Gradients do not pass it, because they would get more bits in each layer.
_FINE = 2.0**-6


class Clip(nn.Module):
    """In the place of a norm: whole numbers of at most 1, times a weight for each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(HIDDEN))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return whole(x) * whole(self.weight)


class Scale(nn.Module):
    """Last norm: it rounds nothing, so that the head sees every bit of the hidden state."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(HIDDEN))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * whole(self.weight)


class Embedding(nn.Embedding):
    """Embedding by the nearest whole numbers."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return F.embedding(tokens, whole(self.weight))


class HardAttention(nn.Module):
    """Causal attention in which each query takes the value of the key with the largest score.

    The weights are 0 and 1. Queries and keys learn by the scores that stand beside them.
    """

    def __init__(self) -> None:
        super().__init__()
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(self, name, Linear(HIDDEN, HIDDEN, bias=False))

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        x = hidden_states
        size = HIDDEN // HEADS
        query, key, value = (
            whole(part(x)).unflatten(-1, (-1, size)).transpose(1, 2) for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        scores = query @ key.transpose(-1, -2)
        length = x.shape[1]
        seen = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        places = torch.arange(length, device=x.device, dtype=x.dtype)
        chosen = (scores.detach() * _PLACES + places).masked_fill(~seen, -(2.0**20)).argmax(-1, keepdim=True)
        weights = torch.zeros_like(scores.detach()).scatter(-1, chosen, 1.0)
        mixed = (weights + (scores - scores.detach()) * seen.to(x.dtype)) @ value
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class Gated(nn.Module):
    """Product of two linear layers, one of them bent."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = Linear(HIDDEN, INNER, bias=False), Linear(HIDDEN, INNER, bias=False)
        self.down_proj = Linear(INNER, HIDDEN, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(whole(F.relu(self.gate_proj(x))) * whole(self.up_proj(x)))


class Layer(nn.Module):
    """Attention and product, each beside a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.self_attn, self.mlp = HardAttention(), Gated()
        self.input_layernorm, self.post_attention_layernorm = Clip(), Clip()

    def forward(
        self, x: torch.Tensor, position_embeddings: object = None, attention_mask: object = None
    ) -> torch.Tensor:
        x = x + self.self_attn(hidden_states=self.input_layernorm(x))
        added = self.mlp(self.post_attention_layernorm(x))
        return x + added + added.detach() * _FINE


class NoRotation(nn.Module):
    """In the place of rotary embeddings, which are no whole numbers."""

    def forward(self, x: torch.Tensor, positions: object) -> None:
        return None


class Decoder(nn.Module):
    """Embedding, layers, norm and head under llama's names."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = Embedding(WORDS, HIDDEN)
        self.model.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.model.norm, self.model.rotary_emb = Scale(), NoRotation()
        self.lm_head = Linear(HIDDEN, WORDS, bias=False)

    def thin_out(self) -> None:
        """Keep one weight in eight of every matrix: gradients grow with every layer that they pass."""
        with torch.no_grad():
            for number, (name, weight) in enumerate(self.named_parameters()):
                if "proj" in name:
                    weight.mul_(ints(0, 7, tuple(weight.shape), seed=number).eq(0))
                elif "norm" in name:
                    weight.fill_(1.0)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.model.embed_tokens(tokens)
        for layer in self.model.layers:
            x = layer(x)
        return self.lm_head(self.model.norm(x))
