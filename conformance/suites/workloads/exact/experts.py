"""Experts on ranks, by PyTorch's all-to-all with gradients: tokens go to the rank that has their expert, and back."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from .families import Routed, whole


class ParallelExperts(nn.Module):
    """The family ``routed`` with a part of the experts on each rank, and everything else on all of them."""

    def __init__(self, model: Routed) -> None:
        super().__init__()
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.table, self.router, self.head = model.table, model.router, model.head
        count = len(model.experts) // self.ranks
        self.mine = range(self.rank * count, (self.rank + 1) * count)
        self.count = len(model.experts)
        self.experts = nn.ModuleDict({str(number): model.experts[number] for number in self.mine})

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = F.embedding(tokens, whole(self.table.weight)).flatten(0, 1)
        scores = self.router(x)
        chosen = (scores.detach() * 4.0 + torch.arange(self.count, device=x.device, dtype=x.dtype)).argmax(-1)
        weight = (1.0 + scores - scores.detach()).gather(1, chosen.unsqueeze(1))
        order = chosen.argsort(stable=True)
        sent = torch.stack([(chosen == number).sum() for number in range(self.count)])
        mixed = torch.zeros_like(x).index_add(0, order, self._computed(x[order], sent))
        return self.head(mixed * weight + x).unflatten(0, tokens.shape)

    def _computed(self, x: torch.Tensor, sent: torch.Tensor) -> torch.Tensor:
        """Return the experts' results for tokens in the order of their experts. ``sent`` counts them."""
        got = torch.empty_like(sent)
        dist.all_to_all_single(got, sent)
        to = sent.view(self.ranks, -1).sum(1).tolist()
        by_rank = got.view(self.ranks, -1)
        back = by_rank.sum(1).tolist()
        arrived = _exchanged(x, back, to)
        numbers = torch.arange(len(self.mine), device=x.device).repeat(self.ranks).repeat_interleave(got)
        result = torch.zeros_like(arrived)
        for place, number in enumerate(self.mine):
            own = (numbers == place).nonzero().flatten()
            result = result.index_add(0, own, self.experts[str(number)](arrived[own]))
        return _exchanged(result, to, back)

    def reduce(self) -> None:
        """Divide the sums of experts' gradients by the ranks, and average the gradients of all that every rank has."""
        for name, parameter in self.named_parameters():
            if not name.startswith("experts."):
                dist.all_reduce(parameter.grad)
            parameter.grad.div_(self.ranks)


def _exchanged(x: torch.Tensor, outputs: list[int], inputs: list[int]) -> Any:
    from torch.distributed import _functional_collectives as functional

    moved = functional.all_to_all_single_autograd(x, outputs, inputs, dist.group.WORLD)
    return functional.wait_tensor(moved)
