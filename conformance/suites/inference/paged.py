"""Cache of keys and values in pages that sequences share, give back and take again, and a decoder that uses it."""

from __future__ import annotations

import math

import torch

from conformance.suites.module_inject.models import rotated

#: Tokens of a page.
PAGE = 4


class OutOfPages(Exception):
    """No page is free."""


class Pages:
    """Pool of pages for all layers, and the pages of each sequence in the order of its tokens.

    A page that several sequences have is not written: its last owner but one gets a copy first.
    """

    def __init__(self, model, count):
        layer, like = model.layers[0], model.head.weight
        shape = (count * PAGE, layer.pairs, layer.width)
        self.keys, self.values = ([like.new_full(shape, math.nan) for _ in model.layers] for _ in "ab")
        self.free = list(range(count))
        self.owners = [0] * count
        self.tables, self.lengths = {}, {}
        self.device = like.device

    def used(self):
        """Return how many pages have an owner."""
        return sum(1 for owners in self.owners if owners)

    def begin(self, sequence, *, like=None):
        """Begin an empty sequence, or one that shares all tokens of another."""
        self.tables[sequence] = list(self.tables[like]) if like is not None else []
        self.lengths[sequence] = self.lengths[like] if like is not None else 0
        for page in self.tables[sequence]:
            self.owners[page] += 1

    def end(self, sequence):
        """Give all pages of a sequence back. What is free is overwritten, so that stale values show up."""
        for page in self.tables.pop(sequence):
            self._drop(page)
        del self.lengths[sequence]

    def _drop(self, page):
        self.owners[page] -= 1
        if not self.owners[page]:
            self.free.append(page)
            for tensor in (*self.keys, *self.values):
                tensor[page * PAGE : (page + 1) * PAGE].fill_(math.nan)

    def _take(self):
        if not self.free:
            raise OutOfPages
        page = self.free.pop(0)
        self.owners[page] = 1
        return page

    def room(self, sequence, count):
        """Make room for further tokens and return the slots of all tokens, old and new."""
        table, length = self.tables[sequence], self.lengths[sequence]
        if length % PAGE and self.owners[table[-1]] > 1:
            copy = self._take()
            for tensor in (*self.keys, *self.values):
                tensor[copy * PAGE : (copy + 1) * PAGE] = tensor[table[-1] * PAGE : (table[-1] + 1) * PAGE]
            self._drop(table[-1])
            table[-1] = copy
        while len(table) * PAGE < length + count:
            table.append(self._take())
        self.lengths[sequence] = length + count
        return self.slots(sequence)

    def slots(self, sequence):
        """Return the places of a sequence's tokens in the pool."""
        places = [page * PAGE + place for page in self.tables[sequence] for place in range(PAGE)]
        return torch.tensor(places[: self.lengths[sequence]], device=self.device)

    def away(self, sequence):
        """Copy a sequence to the host and give its pages back; return the copy."""
        slots = self.slots(sequence)
        copy = [[tensor.index_select(0, slots).cpu() for tensor in tensors] for tensors in (self.keys, self.values)]
        self.end(sequence)
        return copy

    def back(self, sequence, copy):
        """Take pages for a sequence that was copied to the host, and fill them."""
        self.begin(sequence)
        slots = self.room(sequence, len(copy[0][0]))
        for tensors, kept in zip((self.keys, self.values), copy, strict=True):
            for tensor, rows in zip(tensors, kept, strict=True):
                tensor.index_copy_(0, slots, rows.to(self.device))


class PagedDecoder:
    """Decoder by PyTorch's operators, for pieces of any length of one sequence at a time."""

    def __init__(self, model, count, window=None):
        self.model, self.pages, self.window = model, Pages(model, count), window
        self._dropped = {}

    @torch.no_grad()
    def __call__(self, sequence, tokens):
        """Return the logits (tokens, vocabulary) of further tokens (tokens) of a sequence."""
        slots = self.pages.room(sequence, len(tokens))
        count, total = len(tokens), len(slots)
        skipped = self._dropped.get(sequence, 0)
        new, x = slots[total - count :], self.model.tokens(tokens.to(self.pages.device))[None]
        for number, layer in enumerate(self.model.layers):
            cos, sin = (table[skipped:] for table in layer.angles(skipped + total, x))
            query, key, value = layer.projected(x)
            self.pages.keys[number].index_copy_(0, new, rotated(key, cos[-count:], sin[-count:])[0].transpose(0, 1))
            self.pages.values[number].index_copy_(0, new, value[0].transpose(0, 1))
            keys, values = (
                pool[number].index_select(0, slots).transpose(0, 1).repeat_interleave(layer.heads // layer.pairs, dim=0)
                for pool in (self.pages.keys, self.pages.values)
            )
            scores = rotated(query, cos[-count:], sin[-count:])[0] @ keys.transpose(-1, -2) / math.sqrt(layer.width)
            places = torch.arange(total, device=scores.device)
            ahead = places[total - count :, None] - places
            hidden = (ahead < 0) if self.window is None else (ahead < 0) | (ahead >= self.window)
            mixed = torch.softmax(scores.masked_fill(hidden, -math.inf), dim=-1) @ values
            x = layer.behind(x, mixed[None])
        if self.window is not None:
            self._forget(sequence)
        return self.model.head(self.model.norm(x))[0]

    def _forget(self, sequence):
        """Give back pages that no later token looks at."""
        table = self.pages.tables[sequence]
        while self.pages.lengths[sequence] - PAGE >= self.window - 1 and len(table) > 1:
            self.pages._drop(table.pop(0))
            self.pages.lengths[sequence] -= PAGE
            self._dropped[sequence] = self._dropped.get(sequence, 0) + PAGE
