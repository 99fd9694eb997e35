"""Padded batches of sequences of unequal length: tokens, positions and attention masks."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

#: Token of the padding. It is a regular word, so that attention to padding changes the logits.
FILLER = 7


@dataclass(frozen=True)
class Padded:
    """Batch of prompts with these lengths, padded to the longest one, on the left or on the right."""

    sequences: list[torch.Tensor]
    lengths: tuple[int, ...]
    left: bool

    @property
    def room(self):
        return max(self.lengths)

    def first(self, row):
        """Return the column at which the sequence of that row begins."""
        return self.room - self.lengths[row] if self.left else 0

    def prompts(self):
        tokens = torch.full((len(self.lengths), self.room), FILLER)
        for row, (sequence, length) in enumerate(zip(self.sequences, self.lengths, strict=True)):
            tokens[row, self.first(row) : self.first(row) + length] = sequence[:length]
        return tokens

    def mask(self, dtype, further=0):
        """Return a mask to add to scores, (batch, room + further): minus infinity at padding, 0 elsewhere.

        ``further`` is the number of tokens that follow all prompts.
        """
        mask = torch.zeros(len(self.lengths), self.room + further)
        for row, length in enumerate(self.lengths):
            is_token = torch.zeros(self.room, dtype=torch.bool)
            is_token[self.first(row) : self.first(row) + length] = True
            mask[row, : self.room].masked_fill_(~is_token, -math.inf)
        return mask.to(dtype)

    def prompt_places(self):
        """Return the position of each token in its own sequence, (batch, room); 0 for padding on the left."""
        firsts = torch.tensor([self.first(row) for row in range(len(self.lengths))])
        return (torch.arange(self.room) - firsts[:, None]).clamp(min=0)

    def next(self, further):
        """Return the tokens ``further`` places after the end of each prompt, (batch, 1), and their positions."""
        places = torch.tensor(self.lengths)[:, None] + further
        tokens = torch.stack([sequence[int(at)] for sequence, at in zip(self.sequences, places, strict=True)])
        return tokens[:, None], places
