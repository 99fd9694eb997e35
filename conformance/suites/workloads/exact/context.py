"""Context parallelism in exact arithmetic: each rank has a part of every sequence, and attends to all of it.

PyTorch's own ring attention knows three attention operators by name, and refuses a device that computes attention by
another one. These two ways need only collectives: blocks of keys and values that travel around a ring, by sends and
receives, or one gather of all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from conformance.suites.rank_functions import Group

from .decoder import HEADS, HIDDEN, HardAttention
from .families import whole
from .ranks import check_parts, decoder

#: Distance of two whole scores, as in the attention of one process: no two keys get the same score.
_PLACES = 64.0
_HIDDEN_SCORE = -(2.0**20)

Blocks = Callable[[torch.Tensor, Group], list[torch.Tensor]]


def ring(both: torch.Tensor, group: Group) -> list[torch.Tensor]:
    """Return every rank's keys and values, by rank, as they come around the ring."""
    found = {group.number: both}
    for step in range(1, group.size):
        both = group.shifted(both, both.shape)
        found[(group.number - step) % group.size] = both
    return [found[number] for number in range(group.size)]


def gather(both: torch.Tensor, group: Group) -> list[torch.Tensor]:
    """Return every rank's keys and values, by rank, from one gather."""
    return group.gathered(both)


WAYS: dict[str, Blocks] = {"ring": ring, "gather": gather}


class Attention(nn.Module):
    """Attention of the exact decoder for a part of the sequence on each rank, with the same parameters."""

    def __init__(self, attention: HardAttention, blocks: Blocks, group: Group) -> None:
        super().__init__()
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(self, name, getattr(attention, name))
        self._blocks, self._group = blocks, group

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        query, *both = (
            whole(part(hidden_states)).unflatten(-1, (-1, HIDDEN // HEADS)).transpose(1, 2)
            for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        # The attention of a block needs no other block, but the choice of the largest score needs all of them.
        blocks = self._blocks(torch.stack(both), self._group)
        scores = [query @ key.transpose(-1, -2) for key, _ in blocks]
        length = query.shape[-2]
        places = torch.arange(self._group.size * length, device=query.device)
        seen = places <= places.view(-1, length)[self._group.number].unsqueeze(-1)
        whole_row = torch.cat([block.detach() for block in scores], -1)
        chosen = (whole_row * _PLACES + places).masked_fill(~seen, _HIDDEN_SCORE).argmax(-1, keepdim=True)
        weights = torch.zeros_like(whole_row).scatter(-1, chosen, 1.0)
        mixed = torch.zeros_like(query)
        for number, (block, (_, value)) in enumerate(zip(scores, blocks, strict=True)):
            mine = slice(number * length, (number + 1) * length)
            learned = (block - block.detach()) * seen[:, mine].to(query.dtype)
            mixed = mixed + (weights[..., mine] + learned) @ value
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


def check_context(check: Any, way: str, device: torch.device) -> None:
    """Check that the decoder whose sequence is on several ranks has the bits of one process."""
    group, family = Group.of_all(), decoder(2)
    model = family.initial()
    for layer in model.model.layers:
        layer.self_attn = Attention(layer.self_attn, WAYS[way], group)
    model = model.to(device)
    check_parts(check, f"cp by {way}", family, model, device, dim=1, reduce=lambda: _average(model, group))


def _average(model: nn.Module, group: Group) -> None:
    """Replace each gradient by the mean over the ranks: each has the loss of its part of the sequence."""
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=group.handle)
        parameter.grad.div_(group.size)
