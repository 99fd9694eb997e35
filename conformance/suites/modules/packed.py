"""Packed sequences: rows of unequal length, without their padding, for modules that go from step to step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.utils import rnn


class Packed(nn.Module):
    """Recurrent module that gets a padded batch as a packed sequence.

    ``padded`` has shape (rows, steps, features), and ``lengths`` has the steps of each row, in any order. The results
    are the padded outputs, of shape (rows, steps, hidden), and the state after the last step of each row.
    """

    def __init__(self, kind: Callable[..., nn.Module], **options: Any) -> None:
        super().__init__()
        self.recurrent = kind(**options)

    def forward(self, padded: torch.Tensor, lengths: list[int]) -> tuple[Any, ...]:
        """Return the padded outputs and the states."""
        packed = rnn.pack_padded_sequence(padded, torch.tensor(lengths), batch_first=True, enforce_sorted=False)
        outputs, states = self.recurrent(packed)
        values, _ = rnn.pad_packed_sequence(outputs, batch_first=True)
        return values, states
