"""Sequences of unequal length in one batch: where the tokens of each are, and what attention may see."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

#: What stands where no token is: a word like others, which would be seen.
FILLER = 7


@dataclass(frozen=True)
class Padded:
    """A batch in which prompts of ``lengths`` are filled up to the longest, on the left or on the right."""

    sequences: list[torch.Tensor]
    lengths: tuple[int, ...]
    left: bool

    @property
    def room(self):
        return max(self.lengths)

    def first(self, row):
        """Where the sequence begins."""
        return self.room - self.lengths[row] if self.left else 0

    def prompts(self):
        tokens = torch.full((len(self.lengths), self.room), FILLER)
        for row, (sequence, length) in enumerate(zip(self.sequences, self.lengths, strict=True)):
            tokens[row, self.first(row) : self.first(row) + length] = sequence[:length]
        return tokens

    def mask(self, dtype, further=0):
        """Minus infinity where a prompt is filled up, in front of ``further`` tokens behind all prompts."""
        mask = torch.zeros(len(self.lengths), self.room + further)
        for row, length in enumerate(self.lengths):
            there = torch.zeros(self.room, dtype=torch.bool)
            there[self.first(row) : self.first(row) + length] = True
            mask[row, : self.room].masked_fill_(~there, -math.inf)
        return mask.to(dtype)

    def prompt_places(self):
        """The place of each token in its own sequence; 0 in front of one."""
        firsts = torch.tensor([self.first(row) for row in range(len(self.lengths))])
        return (torch.arange(self.room) - firsts[:, None]).clamp(min=0)

    def next(self, further):
        """The tokens that come ``further`` behind the prompts, and their places."""
        places = torch.tensor(self.lengths)[:, None] + further
        tokens = torch.stack([one[int(at)] for one, at in zip(self.sequences, places, strict=True)])
        return tokens[:, None], places
