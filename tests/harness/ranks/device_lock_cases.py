"""Cases that record when they used which device, for test_device_locks.py."""

import json
import os
import time
from pathlib import Path

from conformance.plan.case import case


@case("lock.use", axes={"n": [str(n) for n in range(8)]}, world_size=2)
def test_use(n, rank, group, device):
    """A rank uses its device for a while."""
    since = time.monotonic()
    time.sleep(0.2)
    use = {
        "device": device.index,
        "since": since,
        "until": time.monotonic(),
        "worker": os.environ["PYTEST_XDIST_WORKER"],
    }
    with Path(os.environ["LEASE_NOTES"], f"use.{os.getpid()}").open("a") as file:
        file.write(json.dumps(use) + "\n")


@case("lock.more", world_size=4)
def test_more(group):
    """A case needs more ranks than there are devices."""
