"""Cases for ranks that torchrun provides on one or two hosts."""

import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist

from conformance.plan.case import case


@case("hosts.sum", axes={"n": ["0", "1"]}, world_size=(2, 4))
def test_sum(n, rank, world_size, group, check):
    """An all-reduce is right, and the launcher's variables tell each rank's host."""
    total = torch.full((4,), float(rank))
    dist.all_reduce(total)
    hosts = int(os.environ.get("HOSTS_OF_THIS_RUN", "1"))
    print(f"rank {rank} prints")
    assert total.tolist() == [world_size * (world_size - 1) / 2] * 4
    check.equal(int(os.environ["LOCAL_WORLD_SIZE"]), world_size // hosts, "ranks on this host")
    check.equal(int(os.environ["LOCAL_RANK"]), rank % (world_size // hosts), "number on this host")


@case("hosts.raises", world_size=2)
def test_raises(rank, group):
    """One rank fails while the other waits."""
    if rank == 1:
        raise ValueError("rank 1 minds")
    dist.barrier()


@case("hosts.dies", world_size=2)
def test_dies(rank, group):
    """One rank is killed."""
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


@case("hosts.sleeps", world_size=2, deadline=3)
def test_sleeps(rank, group):
    """One rank never joins the collective."""
    if rank == 1:
        time.sleep(600)
    dist.barrier()


@case("hosts.many", world_size=6)
def test_many(group):
    """A case needs more ranks than torchrun provides."""


@case("hosts.loses_its_host", world_size=2)
def test_loses_its_host(rank, group):
    """A rank waits until the test cuts off the second host, if the test does so."""
    folder = os.environ.get("HOSTS_LOSE_ONE")
    if folder:
        Path(folder, f"waits.{rank}").touch()
        if rank == 1:
            time.sleep(600)
        dist.all_reduce(torch.ones(2))


@case("hosts.after", axes={"n": ["0", "1"]}, world_size=(2, 4))
def test_after(n, group):
    """An all-reduce works after the other cases."""
    dist.all_reduce(torch.ones(2))
