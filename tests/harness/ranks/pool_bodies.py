"""Bodies for test_pool.py, which drives a pool without pytest around it."""

import os
import subprocess
import sys
from pathlib import Path

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


@case("pool.imported", world_size=2)
def test_imported(rank, group, check):
    """Says which modules it has had from the beginning."""
    check.that(True, "looked")
    check.metric("imported", int("colorsys" in sys.modules))
    check.metric("pid", os.getpid())


@case("pool.child", world_size=2)
def test_child(rank, group, check):
    """Leaves a process in a session of its own."""
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    check.metric("child", child.pid)


@case("pool.batch", world_size=2)
def test_batch(rank, group, check):
    """Calls that torch compares by identity are still the same calls."""
    taken = torch.zeros(2)
    other = 1 - rank
    calls = [dist.P2POp(dist.irecv, taken, other), dist.P2POp(dist.isend, torch.full((2,), float(rank)), other)]
    for work in dist.batch_isend_irecv(calls):
        work.wait()
    check.equal(taken.tolist(), [float(other)] * 2, "what came")


@case("pool.groups", world_size=2)
def test_groups(rank, group, check):
    """Makes more groups, and counts the threads that wait for gloo's network."""
    groups = [dist.new_group() for _ in range(2)]
    for one in (group, *groups):
        dist.all_reduce(torch.ones(2), group=one)
    names = [Path(f"/proc/self/task/{thread}/comm").read_text().strip() for thread in os.listdir("/proc/self/task")]
    check.metric("loops", names.count("gloo_tcp_loop"))
