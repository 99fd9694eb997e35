"""Cases that keep ranks busy or idle for a second or two, with child processes and shared memory."""

import contextlib
import os
import subprocess
import sys
import time
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import torch
import torch.distributed as dist

from conformance.plan.case import case

NOTES = Path(os.environ["CHAOS_NOTES"])


@case("chaos.sum", axes={"n": [str(n) for n in range(40)]}, world_size=(2, 3))
def test_sum(n, rank, world_size, group):
    """An all-reduce is right, with sleeps, child processes, and segments of shared memory for the tracker to remove."""
    (NOTES / "begun").touch()
    if rank == 0 and n in ("3", "17"):
        program = "import time; time.sleep(600)"
        subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
    with segment() if rank == 0 and n in ("1", "5", "21") else contextlib.nullcontext():
        total = torch.ones(4)
        dist.all_reduce(total)
        time.sleep(0.02)


@contextlib.contextmanager
def segment():
    # A process that dies between making a segment and telling its tracker leaves it, and nobody can know. Starting the
    # tracker is most of that time, so it is there before.
    resource_tracker.ensure_running()
    made = SharedMemory(name=f"{NOTES.name}-{os.getpid()}", create=True, size=4096)
    try:
        yield
    finally:
        made.close()
        made.unlink()
