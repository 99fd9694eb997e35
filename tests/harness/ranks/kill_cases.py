"""Cases with busy and idle ranks, for test_kills.py, which kills the processes that drive them."""

import os
import subprocess
import sys
import time
from pathlib import Path

import torch.distributed as dist

from conformance.plan.case import case


def note(name):
    Path(os.environ["KILL_NOTES"], f"{name}.{os.getpid()}").touch()


@case("kill.warm", world_size=3)
def test_warm(group):
    """Three ranks start."""
    dist.barrier()


@case("kill.busy", world_size=2)
def test_busy(rank, group):
    """Two ranks are busy and have child processes; the third is idle."""
    if rank == 0:
        program = "import time; time.sleep(600)"
        subprocess.Popen([sys.executable, "-c", program, "child-of-rank"], start_new_session=True)
    note("busy")
    time.sleep(600)


@case("kill.after", world_size=2)
def test_after(group):
    """An all-reduce works again."""
    dist.barrier()
