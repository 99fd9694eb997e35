"""Small language model: whole, sharded over ranks, and in float64."""

from __future__ import annotations

import torch
from torch import nn

from conformance.suites.module_inject.models import Llama, LlamaLayer, exact_and_model
from conformance.suites.parameters import spread_constants

VOCABULARY, WIDTH = 41, LlamaLayer.hidden
#: Factor for the weights of queries, keys and values. Freshly initialized ones give nearly equal scores, so attention
#: would be a mean of all values and hide errors.
_SHARPER = 3.0


class LanguageModel(nn.Module):
    """Language model that maps tokens (batch, tokens) to logits (batch, tokens, vocabulary)."""

    def __init__(self):
        super().__init__()
        self.tokens, self.layers = nn.Embedding(VOCABULARY, WIDTH), Llama()
        self.norm, self.head = nn.RMSNorm(WIDTH, eps=1e-5), nn.Linear(WIDTH, VOCABULARY, bias=False)
        spread_constants(self.norm)
        with torch.no_grad():
            for layer in self.layers:
                layer.qkv.weight.mul_(_SHARPER)

    def forward(self, tokens):
        return self.head(self.norm(self.layers(self.tokens(tokens))))


def seeded(make, seed=1):
    """Return ``make()`` with the host's generator seeded, so that all ranks get the same; their own seeds differ."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def language_models(dtype):
    """Return the model in float64 and in ``dtype``, with the same weights, which ``dtype`` represents exactly."""
    return seeded(lambda: exact_and_model(LanguageModel, dtype))


def exact_model(state):
    """Return a float64 model on the host with the weights of that state."""
    model = LanguageModel().double()
    model.load_state_dict({name: value.detach().cpu() for name, value in state.items()})
    return model


def some_tokens(*shape, seed=2):
    return torch.randint(0, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def own_part(model, rank, ranks):
    """Return the rank's shard of the model: its attention heads, network columns and words; norms are whole."""
    layers = [_own_layer(layer, rank, ranks) for layer in model.layers]
    part = LanguageModel().to(model.head.weight.dtype)
    part.tokens, part.norm = model.tokens, model.norm
    part.layers = nn.Sequential(*layers)
    words = model.head.weight.tensor_split(ranks)[rank]
    part.head = _linear(words)
    return part


def _own_layer(layer, rank, ranks):
    part = LlamaLayer()
    part.norm_attention, part.norm_network = layer.norm_attention, layer.norm_network
    part.heads, part.pairs, part.middle = (count // ranks for count in (layer.heads, layer.pairs, layer.middle))
    # Queries, keys and values are stacked, and so are up and gate: each part of the stack is cut by itself.
    stacked = layer.qkv.weight.split([count * layer.width for count in (layer.heads, layer.pairs, layer.pairs)])
    part.qkv = _linear(torch.cat([weight.chunk(ranks)[rank] for weight in stacked]))
    part.out = _linear(layer.out.weight.chunk(ranks, dim=1)[rank])
    stacked = layer.up_and_gate.weight.chunk(2)
    part.up_and_gate = _linear(torch.cat([weight.chunk(ranks)[rank] for weight in stacked]))
    part.down = _linear(layer.down.weight.chunk(ranks, dim=1)[rank])
    return part


def _linear(weight):
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=weight.dtype)
    with torch.no_grad():
        layer.weight.copy_(weight)
    return layer
