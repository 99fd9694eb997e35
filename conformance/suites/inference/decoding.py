"""Decoders with a key-value cache: one runs the accelerator's kernels, one PyTorch's operators for graph capture."""

from __future__ import annotations

import math
from contextlib import contextmanager

import torch
from torch.nn import functional

from conformance.kernels.injection import InjectedLinear, InjectedRMSNorm, Injector
from conformance.suites.module_inject.models import InjectedLlamaLayer, allocate, release, rotated


@contextmanager
def workspace(accelerator, dtype, batch, tokens, ranks=1):
    """Yield an injector of the accelerator's kernels, with a workspace for (batch, tokens)."""
    injector = Injector(accelerator)
    allocate(injector, dtype, batch, tokens, ranks)
    try:
        yield injector
    finally:
        release(injector)


class Decoder:
    """Decoder by the accelerator's kernels. Their workspace is its cache, and it shares the model's weights."""

    def __init__(self, model, injector, over_ranks=None, kind=InjectedLlamaLayer):
        layers = list(model.layers)
        self.tokens = model.tokens
        self.layers = [kind(layer, injector, index, len(layers), over_ranks) for index, layer in enumerate(layers)]
        self.norm, self.head = InjectedRMSNorm(model.norm, injector), InjectedLinear(model.head, injector)

    @torch.no_grad()
    def __call__(self, tokens, mask=None, places=None, begins=None):
        """Return the logits, (batch, tokens, vocabulary), of tokens (batch, tokens).

        Several tokens begin a sequence and a single token continues it, unless ``begins`` is given.
        """
        x = self.tokens(tokens)
        for layer in self.layers:
            x = layer(x, mask, places, begins)
        return self.head(self.norm(x))

    def singly(self, tokens, prompt):
        """Return all logits of a prompt of ``prompt`` tokens and of the others, which follow one by one."""
        found = [self(tokens[:, :prompt], begins=True)]
        found += [self(tokens[:, at : at + 1]) for at in range(prompt, tokens.shape[1])]
        return torch.cat(found, dim=1)


class StaticDecoder:
    """Decoder by PyTorch's operators, one token at a time. Its tensors keep their address, so a graph can replay it.

    A step reads ``given`` (batch, 1), writes ``logits`` (batch, vocabulary) and adds 1 to ``place`` (1 element), the
    position of the token in its sequence.
    """

    def __init__(self, model, batch, room):
        like = model.head.weight
        layer = model.layers[0]
        shape = (batch, layer.pairs, room, layer.width)
        self.model, self.caches = model, [(like.new_zeros(shape), like.new_zeros(shape)) for _ in model.layers]
        self.cos, self.sin = layer.angles(room, like)
        self.place = torch.zeros(1, dtype=torch.int64, device=like.device)
        self.every = torch.arange(room, device=like.device)
        self.given = torch.zeros(batch, 1, dtype=torch.int64, device=like.device)
        self.logits = like.new_zeros(batch, model.head.weight.shape[0])

    @torch.no_grad()
    def step(self):
        """Decode one token for each sequence. No operation reads a value back to the host, which a capture forbids."""
        x = self.model.tokens(self.given)
        for layer, cache in zip(self.model.layers, self.caches, strict=True):
            x = layer.behind(x, self._mixed(layer, x, cache))
        self.logits.copy_(self.model.head(self.model.norm(x))[:, 0])
        self.place.add_(1)

    def _mixed(self, layer, x, cache):
        cos, sin = (table.index_select(0, self.place) for table in (self.cos, self.sin))
        query, key, value = layer.projected(x)
        for kept, new in zip(cache, (rotated(key, cos, sin), value), strict=True):
            kept.index_copy_(2, self.place, new)
        keys, values = (kept.repeat_interleave(layer.heads // layer.pairs, dim=1) for kept in cache)
        scores = rotated(query, cos, sin) @ keys.transpose(-1, -2) / math.sqrt(layer.width)
        return functional.softmax(scores.masked_fill(self.every > self.place, -math.inf), dim=-1) @ values

    def back_to(self, place):
        """Continue at that place; attention ignores everything that was written from there on."""
        self.place.fill_(place)

    def run(self, tokens, step=None):
        """Return the logits (batch, tokens, vocabulary) of tokens (batch, tokens), each by ``step``, or eagerly."""
        found = []
        for column in tokens.to(self.given.device).split(1, dim=1):
            self.given.copy_(column)
            (step or self.step)()
            found.append(self.logits.clone())
        return torch.stack(found, dim=1)
