"""Cases that keep ranks busy, and idle, for a second or two; with children of their own, and shared memory."""

import os
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from conformance.case import case


@case("chaos.sum", axes={"n": [str(n) for n in range(40)]}, world_size=(2, 3))
def test_sum(n, rank, world_size, group):
    """Meets, rests, and has a child now and then."""
    Path(os.environ["CHAOS_NOTES"], "begun").touch()
    if rank == 0 and n in ("3", "17"):
        program = "import time; time.sleep(600)"
        subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
    total = torch.ones(4)
    dist.all_reduce(total)
    time.sleep(0.02)
