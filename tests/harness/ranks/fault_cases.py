"""Cases for a machine that lacks a resource, for test_faults.py."""

import mmap
import os
from pathlib import Path

import torch
import torch.distributed as dist

from conformance.plan.case import case


@case("fault.meets", world_size=2)
def test_meets(world_size, group):
    """An all-reduce needs only its ranks."""
    total = torch.ones(3)
    dist.all_reduce(total)
    assert total.tolist() == [world_size] * 3


@case("fault.shared", world_size=2)
def test_shared(rank, group):
    """A write into shared memory without space makes the kernel end the process."""
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
    """An all-reduce works after the fault."""
    dist.barrier()
