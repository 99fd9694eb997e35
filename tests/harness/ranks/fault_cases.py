"""Cases on a machine that lacks something, for test_faults.py."""

import mmap
import os
from pathlib import Path

import torch
import torch.distributed as dist

from conformance.case import case


@case("fault.meets", world_size=2)
def test_meets(world_size, group):
    """Needs nothing but its ranks."""
    total = torch.ones(3)
    dist.all_reduce(total)
    assert total.tolist() == [world_size] * 3


@case("fault.shared", world_size=2)
def test_shared(rank, group):
    """Writes into shared memory for which there is no room: the kernel ends who does."""
    if rank == 1:
        path = Path("/dev/shm/fault-of-a-rank")
        with path.open("wb+") as file:
            path.unlink()
            os.truncate(file.fileno(), 1 << 20)
            memory = mmap.mmap(file.fileno(), 1 << 20)
            memory[:] = b"x" * (1 << 20)
    dist.barrier()


@case("fault.meets_again", world_size=3)
def test_meets_again(world_size, group):
    """Works on."""
    dist.barrier()
