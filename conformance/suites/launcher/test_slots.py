"""torchrun cases: slots from the environment, exit statuses, and ranks that numactl binds."""

from __future__ import annotations

import functools
import shutil
import subprocess
from pathlib import Path

from conformance.accelerators.capabilities import COMM, DEVICE_MULTIPLE, DEVICE_VISIBILITY
from conformance.judging.finding import environment_lacks
from conformance.plan.case import About, case

from .jobs import check_identities, launch, needs_devices
from .test_torchrun import parts_of_cores

#: Devices that the environment shows, by the name of the axis.
SLOTS = {"second": [1], "both": [0, 1]}
#: Each rank says which devices its environment shows, and computes on the one of its local rank.
COUNTED = """
from conformance.accelerators.registry import resolve
live = resolve(os.environ["JOB_ACCELERATOR"]).load()
import torch
live.set_device(int(os.environ["LOCAL_RANK"]))
place = torch.full((rank + 3,), 2.0, device=live.current_device_name())
report(count=live.device_count(), current=live.current_device(), total=place.sum().item())
"""


@case(
    "launcher.slots",
    requires=[COMM, DEVICE_VISIBILITY, DEVICE_MULTIPLE],
    axes={"slots": tuple(SLOTS)},
    deadline=300,
)
def test_slots(accelerator, check, slots, pytestconfig, tmp_path):
    """A launcher whose environment shows some devices and names their number starts one rank for each of them."""
    shown = SLOTS[slots]
    variables = {}
    accelerator.set_visible_devices_envs(variables, shown)
    spec = pytestconfig.getoption("--accelerator")
    job = launch(tmp_path, COUNTED, None, JOB_ACCELERATOR=spec, PET_NPROC_PER_NODE=str(len(shown)), **variables)

    check.equal(job.status, 0, f"the job's exit status (output: {job.output})")
    check_identities(check, job, 0, len(shown))
    check.equal(len(job.facts), len(shown), "ranks that ran")
    for rank in range(len(shown)):
        facts = job.facts[0, rank]
        check.equal((facts["count"], facts["current"]), (len(shown), rank), f"device count and device of rank {rank}")
        check.equal(facts["total"], 2.0 * (rank + 3), f"the sum on the device of rank {rank}")


#: The exit status of the second rank, which its device computes; the first rank ends well before.
STATUS = 42
ENDS = """
from conformance.accelerators.registry import resolve
live = resolve(os.environ["JOB_ACCELERATOR"]).load()
import torch
live.set_device(rank % live.device_count())
total = int(torch.full((7,), 6.0 * rank, device=live.current_device_name()).sum().item())
report(total=total)
wait_for("0-0.json", "0-1.json")
sys.exit(total)
"""


@case("launcher.status", requires=[COMM], deadline=300)
def test_status(accelerator, check, device, pytestconfig, tmp_path):
    """The exit status that one rank computes on its device wins over the success of the other, and is reported."""
    needs_devices(accelerator, device, 2)

    job = launch(tmp_path, ENDS, 2, JOB_ACCELERATOR=pytestconfig.getoption("--accelerator"))

    check_identities(check, job, 0, 2)
    check.equal([job.facts[0, rank]["total"] for rank in range(2)], [0, STATUS], "the statuses that devices computed")
    check.that(job.status != 0, f"the job's exit status is 0, although rank 1 ended with {STATUS}")
    said = " ".join(job.output.split())
    check.that(f"rank : 1 (local_rank: 1) exitcode : {STATUS} " in said, f"the launcher's summary is {job.output!r}")


#: numactl bounds cores and memory of each rank before its program begins. The runtime and its threads have to stay.
KEPT = """
from conformance.accelerators.registry import resolve
live = resolve(os.environ["JOB_ACCELERATOR"]).load()
import torch
live.set_device(rank % live.device_count())
host = torch.arange(1 << 20, dtype=torch.float32)
total = (host % 3).to(live.current_device_name()).sum().item()
def allowed(thread):
    try:
        return sorted(os.sched_getaffinity(int(thread)))
    except ProcessLookupError:
        return []  # the thread has ended since it was listed
policies = [line.split()[1] for line in pathlib.Path("/proc/self/numa_maps").read_text().splitlines() if "heap" in line]
report(threads=[allowed(thread) for thread in os.listdir("/proc/self/task")], policies=policies, total=total)
"""


#: Folder of Linux with one folder for each core, in which a link names the core's NUMA node.
TOPOLOGY = Path("/sys/devices/system/cpu")


@functools.cache
def bound_by_numactl(cores, node):
    """Return the command that binds a program to cores and to the memory of a node; None where that is impossible."""
    command = ("numactl", f"--physcpubind={','.join(map(str, cores))}", f"--membind={node}")
    if not shutil.which("numactl") or not Path("/proc/self/numa_maps").exists():
        return None
    done = subprocess.run([*command, "true"], capture_output=True, check=False, timeout=60)
    return command if done.returncode == 0 else None


def node_of(core, topology=TOPOLOGY):
    """Return the NUMA node of a core, 0 on a machine that names none."""
    nodes = [path.name.removeprefix("node") for path in (topology / f"cpu{core}").glob("node[0-9]*")]
    return int(nodes[0]) if nodes else 0


def cores_of_one_node(cores, topology=TOPOLOGY):
    """Return those of the cores that are in the node of the first one, and the node; no cores give node 0."""
    node = node_of(cores[0], topology) if cores else 0
    return [core for core in cores if node_of(core, topology) == node], node


@case("launcher.numa", requires=[COMM], deadline=300, about=About.LIBRARY)
def test_numa(accelerator, check, device, pytestconfig, tmp_path):
    """Ranks that numactl binds keep their cores and the memory policy of their node while they use the device."""
    needs_devices(accelerator, device, 2)
    cores, node = cores_of_one_node(parts_of_cores()[0])
    under = bound_by_numactl(tuple(cores), node) if cores else None
    if under is None:
        environment_lacks(
            "numactl cannot bind two ranks here: it is not installed, or fewer than two cores are usable; "
            "try: numactl --physcpubind=0 --membind=0 true"
        )

    job = launch(tmp_path, KEPT, 2, under=under, JOB_ACCELERATOR=pytestconfig.getoption("--accelerator"))

    check.equal(job.status, 0, f"the job's exit status (output: {job.output})")
    check_identities(check, job, 0, 2)
    expected = sum(number % 3 for number in range(1 << 20))
    for rank in range(2):
        facts = job.facts[0, rank]
        strayed = [found for found in facts["threads"] if not set(found) <= set(cores)]
        check.that(not strayed, f"threads of rank {rank}, bound to cores {cores}, may use {strayed}")
        check.that(facts["policies"], f"rank {rank} has no heap in /proc/self/numa_maps")
        check.equal(set(facts["policies"]), {f"bind:{node}"}, f"memory policy of the heap of rank {rank}")
        check.equal(facts["total"], float(expected), f"the sum on the device of rank {rank}")
