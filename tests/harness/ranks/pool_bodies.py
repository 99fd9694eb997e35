"""Bodies for test_pool.py, which drives a pool without pytest around it."""

import os

import torch
import torch.distributed as dist

from conformance.case import case


@case("pool.sum", world_size=2)
def test_sum(rank, world_size, group, check):
    """Meets, and says who it was."""
    total = torch.ones(3)
    dist.all_reduce(total)
    check.that(total.tolist() == [world_size] * 3, f"got {total.tolist()}")
    check.metric("pid", os.getpid())
