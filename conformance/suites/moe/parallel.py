"""Experts over some of the ranks: groups, a meshed layout, and the way of tokens to their experts and back."""

from __future__ import annotations

import torch
import torch.distributed as dist

from .test_experts import EXPERTS, TOKENS, expert, whole


class Layout:
    """Layout of ranks: ``size`` neighbours share all experts, and every such group has a copy of them.

    Rank numbers are (copy, part). ``experts`` is the group that exchanges tokens, and ``copies`` the ranks that have
    the same experts.
    """

    def __init__(self, device, size, rank, world_size):
        from torch.distributed.device_mesh import init_device_mesh

        self.size, self.each = size, EXPERTS // size
        self.mesh = init_device_mesh(device.type, (world_size // size, size), mesh_dim_names=("copies", "experts"))
        self.experts, self.copies = self.mesh.get_group("experts"), self.mesh.get_group("copies")
        self.part = rank % size
        self.rows = slice(rank * TOKENS // world_size, (rank + 1) * TOKENS // world_size)

    def own(self, weights):
        """Return the rank's experts of all of them."""
        return weights[self.part * self.each : (self.part + 1) * self.each]

    def sharded(self, weights):
        """Return all experts as a tensor of the mesh: a copy in each group, a part on each of its ranks."""
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor

        return distribute_tensor(weights, self.mesh, [Replicate(), Shard(0)])


def exchanged(x, given, taken, group):
    """Exchange rows inside the group and return the received ones; gradients travel in the opposite direction."""
    from torch.distributed._functional_collectives import all_to_all_single_autograd

    return all_to_all_single_autograd(x, taken, given, group)


def through_group(mine, chosen, layout, compute):
    """Return the experts' outputs for own tokens; ``compute(rows, numbers)`` gets rows and the numbers of own experts.

    Tokens are sorted by expert, sent, computed, sent back and unsorted.
    """
    order = torch.argsort(chosen, stable=True)
    given = torch.bincount(chosen, minlength=EXPERTS)
    taken = torch.empty_like(given)
    dist.all_to_all_single(taken, given, group=layout.experts)
    sent, received = (part.view(layout.size, layout.each).sum(1).cpu().tolist() for part in (given, taken))
    arrived = exchanged(mine[order], sent, received, layout.experts)
    numbers = torch.arange(layout.each, device=mine.device).repeat(layout.size).repeat_interleave(taken)
    back = exchanged(compute(arrived, numbers), received, sent, layout.experts)
    return torch.empty_like(back).index_copy(0, order, back)


def by_mask(own):
    """Return a function that computes rows by every own expert, and keeps those of the right one."""

    def compute(rows, numbers):
        made = torch.tanh(rows @ own)
        mine = numbers == torch.arange(len(own), device=rows.device).view(-1, 1)
        return torch.where(mine.unsqueeze(-1), made, 0.0).sum(0)

    return compute


def exact_experts():
    """Return tokens, experts and outputs of one process in float64, after a backward pass of the summed squares."""
    x, chosen, weights = whole()
    exact_x, exact_weights = x.double().requires_grad_(), weights.double().requires_grad_()
    exact = torch.stack([expert(exact_x[token], exact_weights[chosen[token]]) for token in range(TOKENS)])
    exact.square().sum().backward()
    return exact_x, exact_weights, exact.detach()
