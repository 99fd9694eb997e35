"""Jobs of torchrun."""

from __future__ import annotations

import json
import os
import time

from conformance.accelerators.capabilities import COMM, DEVICE_MULTIPLE, DEVICE_VISIBILITY
from conformance.case import case
from conformance.finding import environment_lacks

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

#: Each rank binds itself to its part of the cores, as launchers do: before anything is imported. Loading and computing
#: start threads, which have to stay there.
BOUND = """
own = json.loads(os.environ["JOB_CORES"])[rank]
if own:
    os.sched_setaffinity(0, own)
from conformance.accelerators.registry import resolve
live = resolve(os.environ["JOB_ACCELERATOR"]).load()
import torch
total = (torch.ones(512, 512) @ torch.ones(512, 512)).to(live.device_name(0)).sum().item()
def allowed(thread):
    try:
        return sorted(os.sched_getaffinity(int(thread)))
    except ProcessLookupError:
        return own  # it has ended meanwhile
told(
    marks={name: value for name, value in os.environ.items() if name.endswith("_JOB_MARK")},
    threads=[allowed(thread) for thread in os.listdir("/proc/self/task")] if own else [],
    count=live.device_count(),
    total=total,
)
"""
#: What a shell on another host has by itself.
LOGIN = ("HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TMPDIR", "USER", "VIRTUAL_ENV", "XDG_CACHE_HOME")
#: What shells and lists of variables are known to spoil.
MARK = " a=b; \"c\" 'd' $HOME\n\té"


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


_JOBS = {}


def bound_job(accelerator, spec, folder):
    """Two ranks on cores of their own, with what a login and export_envs() give. One job, as it takes seconds."""
    if spec not in _JOBS:
        passed = (*accelerator.export_envs(), *accelerator.visible_devices_envs())
        inherited = {name: value for name, value in os.environ.items() if name in LOGIN or name.startswith(passed)}
        _JOBS[spec] = launch(folder, BOUND, 2, inherited=inherited, **marks(accelerator), JOB_ACCELERATOR=spec,
                             JOB_CORES=json.dumps(parts_of_cores()), OMP_NUM_THREADS="2")  # fmt: skip
    return _JOBS[spec]


def marks(accelerator):
    return {f"{prefix}_JOB_MARK": prefix + MARK for prefix in accelerator.export_envs()}


def parts_of_cores():
    """Half of the cores that this process may use, for each of two ranks; nothing where there are not two."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    half = len(cores) // 2
    return [cores[:half], cores[half : 2 * half]]


@case("launcher.binding", requires=[COMM], deadline=300)
def test_binding(accelerator, check, pytestconfig, tmp_path):
    """Ranks that are bound to cores of their own stay there, with all threads of the accelerator's runtime."""
    parts = parts_of_cores()
    if not all(parts):
        environment_lacks("there are no two cores, or no binding on this system; taskset -pc $$ says what may be used")

    job = bound_job(accelerator, pytestconfig.getoption("--accelerator"), tmp_path)

    check.equal(job.status, 0, f"the job's status ({job.words})")
    for rank, own in enumerate(parts):
        threads = job.told[0, rank]["threads"]
        strayed = [thread for thread in threads if not set(thread) <= set(own)]
        check.that(threads and not strayed, f"of {len(threads)} threads of rank {rank} on {own} some may use {strayed}")
    check.metric("threads", sum(len(job.told[0, rank]["threads"]) for rank in range(2)))


@case("launcher.exports", requires=[COMM], deadline=300)
def test_exports(accelerator, check, pytestconfig, tmp_path):
    """With a login's variables and those that export_envs() names, and no others, every rank has its devices."""
    job = bound_job(accelerator, pytestconfig.getoption("--accelerator"), tmp_path)

    check.equal(job.status, 0, f"the job's status ({job.words})")
    check_identities(check, job, 0, 2)
    for rank in range(2):
        told = job.told[0, rank]
        check.equal(told["marks"], marks(accelerator), f"the variables of rank {rank}")
        check.equal(told["count"], accelerator.device_count(), f"the devices of rank {rank}")
        check.equal(told["total"], 512.0**3, f"the sum on the device of rank {rank}")
