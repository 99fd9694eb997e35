"""Cases for ranks that torchrun provides, on one host or on two."""

import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist

from conformance.case import case


@case("hosts.sum", axes={"n": ["0", "1"]}, world_size=(2, 4))
def test_sum(n, rank, world_size, group, check):
    """All ranks meet; who is on which host is in the variables of launchers."""
    total = torch.full((4,), float(rank))
    dist.all_reduce(total)
    hosts = int(os.environ.get("HOSTS_OF_THIS_RUN", "1"))
    print(f"rank {rank} prints")
    assert total.tolist() == [world_size * (world_size - 1) / 2] * 4
    check.equal(int(os.environ["LOCAL_WORLD_SIZE"]), world_size // hosts, "ranks on this host")
    check.equal(int(os.environ["LOCAL_RANK"]), rank % (world_size // hosts), "number on this host")


@case("hosts.raises", world_size=2)
def test_raises(rank, group):
    """One fails while the other waits."""
    if rank == 1:
        raise ValueError("rank 1 minds")
    dist.barrier()


@case("hosts.dies", world_size=2)
def test_dies(rank, group):
    """One is killed."""
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


@case("hosts.sleeps", world_size=2, deadline=3)
def test_sleeps(rank, group):
    """One never comes."""
    if rank == 1:
        time.sleep(600)
    dist.barrier()


@case("hosts.many", world_size=6)
def test_many(group):
    """Wants more ranks than there are."""


@case("hosts.loses_its_host", world_size=2)
def test_loses_its_host(rank, group):
    """Waits for what the test does to the second host, where it does anything."""
    folder = os.environ.get("HOSTS_LOSE_ONE")
    if folder:
        Path(folder, f"waits.{rank}").touch()
        if rank == 1:
            time.sleep(600)
        dist.all_reduce(torch.ones(2))


@case("hosts.after", axes={"n": ["0", "1"]}, world_size=(2, 4))
def test_after(n, group):
    """Behind all of them."""
    dist.all_reduce(torch.ones(2))
