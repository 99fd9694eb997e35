"""Jobs of torchrun."""

from __future__ import annotations

import json
import time

from conformance.accelerators.capabilities import COMM, DEVICE_MULTIPLE, DEVICE_VISIBILITY
from conformance.case import case

from .jobs import check_identities, gone, launch

FAILS = """
told()
wait_for("0-0.json", "0-1.json")
if rank == 1:
    sys.exit(3)
time.sleep(600)
"""

SEES = """
from conformance.accelerators.registry import resolve
subject = resolve(os.environ["JOB_ACCELERATOR"])
# As launchers do: before anything has asked for a device.
visible = json.loads(os.environ["JOB_VARIABLES"])
os.environ.update(dict.fromkeys(visible, os.environ["LOCAL_RANK"]))
live = subject.load()
import torch
place = torch.ones(3, device=live.device_name(0)).device
told(count=live.device_count(), current=live.current_device(), place=str(place))
"""


@case("launcher.failure", requires=[COMM], deadline=300)
def test_failure(check, tmp_path):
    """A rank that fails ends the job with a status that is not 0, and the other rank with it."""
    job = launch(tmp_path, FAILS, 2)

    check_identities(check, job, 0, 2)
    check.that(job.status != 0, "the job ends with 0")
    other = job.told[0, 0]["pid"]
    until = time.monotonic() + 5
    while not gone(other) and time.monotonic() < until:
        time.sleep(0.01)
    check.that(gone(other), f"process {other}, the other rank, lives on")


@case("launcher.devices", requires=[COMM, DEVICE_VISIBILITY, DEVICE_MULTIPLE], deadline=300)
def test_devices(accelerator, check, pytestconfig, tmp_path):
    """Every local rank that is shown one device sees one, and computes on it."""
    environment = {
        "JOB_ACCELERATOR": pytestconfig.getoption("--accelerator"),
        "JOB_VARIABLES": json.dumps(accelerator.visible_devices_envs()),
    }

    job = launch(tmp_path, SEES, 2, **environment)

    check.equal(job.status, 0, f"the job's status ({job.words})")
    check_identities(check, job, 0, 2)
    for rank in range(2):
        told = job.told[0, rank]
        check.equal((told["count"], told["current"]), (1, 0), f"devices, and the current one, of rank {rank}")
