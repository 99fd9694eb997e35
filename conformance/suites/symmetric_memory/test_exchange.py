"""Symmetric memory: a rank reads what another one wrote into its own memory, or the device refuses it cleanly."""

from __future__ import annotations

import torch

from conformance.accelerators.capabilities import COMM_SYMMETRIC
from conformance.judging.finding import Refused
from conformance.plan.case import case

#: Elements of the exchanged tensor: more than one line of a cache, and no power of two.
SIZE = 1025


@case("symmetric_memory.exchange", requires=[COMM_SYMMETRIC], world_size=2, adaptive=True)
def test_exchange(rank, world_size, group, device, check):
    """Each rank reads the other rank's values, and writes into its memory."""
    try:
        from torch.distributed import _symmetric_memory as symmetric
    except ImportError as error:
        raise Refused(f"torch {torch.__version__} has no symmetric memory: {error}") from None
    try:
        mine = symmetric.empty(SIZE, dtype=torch.float32, device=device)
        handle = symmetric.rendezvous(mine, group.group_name)
    except (RuntimeError, NotImplementedError, ValueError) as error:
        raise Refused(f"{type(error).__name__}: {error}") from None
    peer = (rank + 1) % world_size
    numbers = torch.arange(SIZE, dtype=torch.float32)

    mine.copy_(numbers + 1000 * rank)
    handle.barrier()
    other = handle.get_buffer(peer, (SIZE,), torch.float32)
    read = other.cpu()
    handle.barrier()
    other.fill_(float(rank))
    handle.barrier()

    check.equal(read, numbers + 1000 * peer, "values in the memory of the other rank")
    check.equal(mine.cpu(), torch.full((SIZE,), float(peer)), "values that the other rank wrote")
