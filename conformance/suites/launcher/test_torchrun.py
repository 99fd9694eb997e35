"""torchrun cases: failures, visible devices, CPU binding and exported environment variables."""

from __future__ import annotations

import json
import os
import time

from conformance.accelerators.capabilities import COMM, DEVICE_MULTIPLE, DEVICE_VISIBILITY
from conformance.judging.finding import environment_lacks
from conformance.plan.case import About, case

from .jobs import check_identities, gone, launch, needs_devices

FAILS = """
report()
wait_for("0-0.json", "0-1.json")
if rank == 1:
    sys.exit(3)
time.sleep(600)
"""

SEES = """
from conformance.accelerators.registry import resolve
subject = resolve(os.environ["JOB_ACCELERATOR"])
# Launchers set these variables before anything queries a device.
visible = json.loads(os.environ["JOB_VARIABLES"])
os.environ.update(dict.fromkeys(visible, os.environ["LOCAL_RANK"]))
live = subject.load()
import torch
place = torch.ones(3, device=live.device_name(0)).device
report(count=live.device_count(), current=live.current_device(), place=str(place))
"""

#: Each rank binds itself to its part of the cores before anything is imported, as launchers do. Loading and computing
#: start threads, which have to stay on these cores.
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
        return own  # the thread has ended since it was listed
report(
    marks={name: value for name, value in os.environ.items() if name.endswith("_JOB_MARK")},
    threads=[allowed(thread) for thread in os.listdir("/proc/self/task")] if own else [],
    count=live.device_count(),
    total=total,
)
"""
#: Variables that a login shell on another host sets by itself.
LOGIN = ("HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TMPDIR", "USER", "VIRTUAL_ENV", "XDG_CACHE_HOME")
#: Characters that are often damaged when variables pass through a shell or through a list of variables.
MARK = " a=b; \"c\" 'd' $HOME\n\té"


@case("launcher.failure", requires=[COMM], deadline=300, about=About.PYTORCH)
def test_failure(check, tmp_path):
    """When one rank fails, the job ends the other rank and returns a nonzero exit status."""
    job = launch(tmp_path, FAILS, 2)

    check_identities(check, job, 0, 2)
    check.that(job.status != 0, "the job's exit status is 0, although rank 1 failed with 3")
    other = job.facts[0, 0]["pid"]
    until = time.monotonic() + 5
    while not gone(other) and time.monotonic() < until:
        time.sleep(0.01)
    check.that(gone(other), f"process {other}, rank 0, still runs 5 s after the job has ended")


@case("launcher.devices", requires=[COMM, DEVICE_VISIBILITY, DEVICE_MULTIPLE], deadline=300)
def test_devices(accelerator, check, pytestconfig, tmp_path):
    """A local rank with one visible device sees exactly one device and computes on it."""
    environment = {
        "JOB_ACCELERATOR": pytestconfig.getoption("--accelerator"),
        "JOB_VARIABLES": json.dumps(accelerator.visible_devices_envs()),
    }

    job = launch(tmp_path, SEES, 2, **environment)

    check.equal(job.status, 0, f"the job's exit status (output: {job.output})")
    check_identities(check, job, 0, 2)
    for rank in range(2):
        facts = job.facts[0, rank]
        check.equal((facts["count"], facts["current"]), (1, 0), f"device count and current device of rank {rank}")


_JOBS = {}


def bound_job(accelerator, spec, folder):
    """Return a job of two ranks, bound to separate cores, with the variables of a login shell and of export_envs().

    Two cases share one job, as it takes seconds.
    """
    if spec not in _JOBS:
        passed = (*accelerator.export_envs(), *accelerator.visible_devices_envs())
        inherited = {name: value for name, value in os.environ.items() if name in LOGIN or name.startswith(passed)}
        _JOBS[spec] = launch(folder, BOUND, 2, inherited=inherited, **marks(accelerator), JOB_ACCELERATOR=spec,
                             JOB_CORES=json.dumps(parts_of_cores()), OMP_NUM_THREADS="2")  # fmt: skip
    return _JOBS[spec]


def marks(accelerator):
    return {f"{prefix}_JOB_MARK": prefix + MARK for prefix in accelerator.export_envs()}


def parts_of_cores():
    """Return half of the usable cores for each of two ranks; two empty lists where there are fewer than two cores."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    half = len(cores) // 2
    return [cores[:half], cores[half : 2 * half]]


@case("launcher.binding", requires=[COMM], deadline=300)
def test_binding(accelerator, check, pytestconfig, tmp_path):
    """All threads of a rank, also those of the accelerator's runtime, stay on the cores that the rank is bound to."""
    parts = parts_of_cores()
    if not all(parts):
        environment_lacks(
            "fewer than two cores are usable, or this system has no CPU binding; "
            "show the usable cores with: taskset -pc $$"
        )

    job = bound_job(accelerator, pytestconfig.getoption("--accelerator"), tmp_path)

    check.equal(job.status, 0, f"the job's exit status (output: {job.output})")
    for rank, own in enumerate(parts):
        threads = job.facts[0, rank]["threads"]
        strayed = [cores for cores in threads if not set(cores) <= set(own)]
        message = f"of {len(threads)} threads of rank {rank}, bound to cores {own}, {len(strayed)} may use {strayed}"
        check.that(threads and not strayed, message)
        check.equal(job.facts[0, rank]["total"], 512.0**3, f"the sum on the device of rank {rank}")
    check.metric("threads", sum(len(job.facts[0, rank]["threads"]) for rank in range(2)))


@case("launcher.exports", requires=[COMM], deadline=300)
def test_exports(accelerator, check, pytestconfig, tmp_path):
    """Every rank has its devices with no other variables than those of a login shell and of export_envs()."""
    job = bound_job(accelerator, pytestconfig.getoption("--accelerator"), tmp_path)

    check.equal(job.status, 0, f"the job's exit status (output: {job.output})")
    check_identities(check, job, 0, 2)
    for rank in range(2):
        facts = job.facts[0, rank]
        check.equal(facts["marks"], marks(accelerator), f"the exported variables of rank {rank}")
        check.equal(facts["count"], accelerator.device_count(), f"the device count of rank {rank}")
        check.equal(facts["total"], 512.0**3, f"the sum on the device of rank {rank}")


#: A rank that gets a signal in the middle of work on its device says so, with a result of the device, and ends.
SIGNALLED = """
from conformance.accelerators.registry import resolve
live = resolve(os.environ["JOB_ACCELERATOR"]).load()
import torch
live.set_device(rank % live.device_count())
received = []
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda number, frame: received.append(signal.Signals(number).name))
value = torch.arange(1.0, 6.0, device=live.current_device_name())
write(f"ready-{rank}", "")
if rank == 0:
    wait_for("ready-0", "ready-1")
    os.kill(os.getppid(), signal.Signals[os.environ["JOB_SIGNAL"]])  # torchrun's agent
until = time.monotonic() + 20
while not received and time.monotonic() < until:
    value = value * 1
    time.sleep(0.01)
report(received=received[:1], total=value.sum().item())
"""


@case("launcher.signal", requires=[COMM], axes={"signal": ("SIGTERM", "SIGINT")}, deadline=300)
def test_signal(accelerator, check, device, signal, pytestconfig, tmp_path):
    """A signal to the launcher reaches all ranks, whose devices still compute, and the job ends with a failure."""
    spec = pytestconfig.getoption("--accelerator")
    needs_devices(accelerator, device, 2)

    job = launch(tmp_path, SIGNALLED, 2, JOB_ACCELERATOR=spec, JOB_SIGNAL=signal)

    check_identities(check, job, 0, 2)
    for rank in range(2):
        facts = job.facts[0, rank]
        # After SIGINT, torchrun sends SIGINT or SIGTERM, depending on its version.
        check.that(facts["received"] in ([signal], ["SIGTERM"]), f"rank {rank} received {facts['received']}")
        check.equal(facts["total"], 15.0, f"the sum on the device of rank {rank}")
    check.that(job.status != 0, f"the exit status of a job that {signal} has ended is 0")


#: Arguments that launchers and shells often damage or take for their own.
ARGUMENTS = ("--nproc-per-node=9", "", "two words", 'it\'s "quoted"', "$HOME", "a=b", "--", "-x", "é\n")
#: Each rank says which arguments it has, and prints a sum of its device to its own log.
TOLD = """
from conformance.accelerators.registry import resolve
live = resolve(os.environ["JOB_ACCELERATOR"]).load()
import torch
live.set_device(rank % live.device_count())
total = torch.full((rank + 3,), 2.0, device=live.current_device_name()).sum().item()
print(f"rank {rank} has {total}", flush=True)
print(f"error of {rank}", file=sys.stderr, flush=True)
report(arguments=sys.argv[1:], total=total)
"""
_TOLD = {}


def told_job(spec, folder):
    """Return a job of two ranks with arguments, and the texts of its logs by file name and rank.

    Two cases share it, as it takes seconds.
    """
    if spec not in _TOLD:
        logs = folder / "logs"
        job = launch(folder, TOLD, 2, f"--log-dir={logs}", "--redirects=3", arguments=ARGUMENTS, JOB_ACCELERATOR=spec)
        texts = {name: {} for name in ("stdout.log", "stderr.log")}
        for name, of_ranks in texts.items():
            for path in logs.rglob(name):
                of_ranks.setdefault(path.parent.name, []).append(path.read_text(encoding="utf-8"))
        _TOLD[spec] = job, texts
    return _TOLD[spec]


@case("launcher.arguments", requires=[COMM], deadline=300)
def test_arguments(accelerator, check, device, pytestconfig, tmp_path):
    """Every rank gets the user's arguments unchanged and in order."""
    needs_devices(accelerator, device, 2)

    job, _ = told_job(pytestconfig.getoption("--accelerator"), tmp_path)

    check.equal(job.status, 0, f"the job's exit status (output: {job.output})")
    for rank in range(2):
        facts = job.facts[0, rank]
        check.equal(facts["arguments"], list(ARGUMENTS), f"the arguments of rank {rank}")
        check.equal(facts["total"], 2.0 * (rank + 3), f"the sum on the device of rank {rank}")


@case("launcher.logs", requires=[COMM], deadline=300)
def test_logs(accelerator, check, device, pytestconfig, tmp_path):
    """The output and the errors of each rank are in files of its own."""
    needs_devices(accelerator, device, 2)

    job, logs = told_job(pytestconfig.getoption("--accelerator"), tmp_path)

    check.equal(job.status, 0, f"the job's exit status (output: {job.output})")
    for name, line in (("stdout.log", "rank {0} has {1}"), ("stderr.log", "error of {0}")):
        for rank in range(2):
            files = logs[name].get(str(rank), [])
            check.equal(len(files), 1, f"files {name} of rank {rank}")
            text = files[0]
            other = line.format(1 - rank, 2.0 * (4 - rank))
            check.that(line.format(rank, 2.0 * (rank + 3)) in text, f"{name} of rank {rank} is {text[-200:]!r}")
            check.that(other not in text, f"{name} of rank {rank} has lines of the other rank: {text[-200:]!r}")
