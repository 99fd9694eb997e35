"""Case bodies for test_pool.py, which uses a pool without pytest."""

import os
import subprocess
import sys
import threading
import time

import torch
import torch.distributed as dist

from conformance.plan.case import case


@case("pool.sum", world_size=2)
def test_sum(rank, world_size, group, check):
    """An all-reduce is right; the metric is the process id."""
    total = torch.ones(3)
    dist.all_reduce(total)
    check.that(total.tolist() == [world_size] * 3, f"got {total.tolist()}")
    check.metric("pid", os.getpid())


@case("pool.imported", world_size=2)
def test_imported(rank, group, check):
    """The metric tells whether a module is imported from the start."""
    check.that(True, "looked")
    check.metric("imported", int("colorsys" in sys.modules))
    check.metric("pid", os.getpid())


@case("pool.child", world_size=2)
def test_child(rank, group, check):
    """A rank leaves a process in its own session."""
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    check.metric("child", child.pid)


@case("pool.batch", world_size=2)
def test_batch(rank, group, check):
    """Functions that torch compares by identity stay the same objects."""
    taken = torch.zeros(2)
    other = 1 - rank
    calls = [dist.P2POp(dist.irecv, taken, other), dist.P2POp(dist.isend, torch.full((2,), float(rank)), other)]
    for work in dist.batch_isend_irecv(calls):
        work.wait()
    check.equal(taken.tolist(), [float(other)] * 2, "what came")


@case("pool.originals", world_size=2)
def test_originals(rank, group, check):
    """Reports the names of torch.distributed's module that are no longer the classes that C++ defines."""
    from torch._C import _distributed_c10d as native
    from torch.distributed import distributed_c10d as module

    names = [name for name in vars(native) if name.startswith("ProcessGroup") or name.endswith("Store")]
    names = [name for name in names if hasattr(module, name)]
    check.that("ProcessGroupGloo" in names, f"only {names} were compared")
    check.metric("replaced", ",".join(name for name in names if getattr(module, name) is not getattr(native, name)))


@case("pool.thread", world_size=2)
def test_thread(rank, group, check):
    """One rank leaves a thread."""
    check.that(True, "begun")
    if rank == 1:
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
