"""Restart cases of torch.distributed.elastic: a killed rank, and a killed host.

The ranks compute on the device and add up over the declared communication backend, before a rank is killed and after.
"""

from __future__ import annotations

import threading
import time
from fractions import Fraction

from conformance.accelerators.capabilities import COMM, COMM_DTYPE
from conformance.plan.case import case
from conformance.process.machine import slowdown
from conformance.suites.launcher.jobs import check_identities, launch, launch_on_hosts, needs_devices

NEEDS = (COMM, COMM_DTYPE.on("float32"))

#: The device of a rank, and a sum over all ranks on it. Sums of small integers are exact in float32.
ON_DEVICE = """
import atexit
from conformance.accelerators.registry import resolve
live = resolve(os.environ["JOB_ACCELERATOR"]).load()
import torch, torch.distributed as dist
live.set_device(rank % live.device_count())
def leave():
    if dist.is_initialized():
        dist.destroy_process_group()
def join():
    dist.init_process_group(live.communication_backend_name())
    atexit.register(leave)  # the threads of a group that is not destroyed abort the process as it ends
def summed(*terms):
    sums = torch.stack([torch.tensor(numbers, dtype=torch.float32, device=live.current_device_name()).sum()
                        for numbers in terms])
    dist.all_reduce(sums)
    return [int(number) for number in sums.tolist()]
"""
#: Eight samples are added up in steps of four. In the first attempt, rank 1 is killed between two steps.
TRAINS = (
    ON_DEVICE
    + """
join()
state = folder / "state.json"
total, done = json.loads(state.read_text()) if state.exists() else (0, 0)
begun, world = done, int(os.environ["WORLD_SIZE"])
while done < 8:
    (part,) = summed([sample ** 2 for sample in range(done + rank, done + 4, world)])
    total += part
    done += 4
    if rank == 0:
        write("state.json", json.dumps([total, done]))
    wait_for("state.json")
    report(begun=begun, total=total)
    if attempt == 0:
        wait_for(f"{attempt}-0.json", f"{attempt}-1.json")
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600)
report(begun=begun, total=total)
"""
)


def restarted(accelerator, check, device, pytestconfig, folder, program):
    """Run a job of two ranks that restarts once, check that it ends well, and return it with its second attempt."""
    needs_devices(accelerator, device, 2)
    spec = pytestconfig.getoption("--accelerator")
    job = launch(folder, program, 2, "--max-restarts=1", forked=True, JOB_ACCELERATOR=spec)

    check.equal(job.status, 0, f"the job's exit status (output: {job.output})")
    second = [job.facts[1, rank] for rank in range(2)]
    check.equal([facts["begun"] for facts in second], [4, 4], "samples done before the second attempt, by rank")
    check.equal([facts["total"] for facts in second], [sum(sample**2 for sample in range(8))] * 2, "the final sums")
    return job, second


@case("elasticity.restart", requires=NEEDS, deadline=300)
def test_restart(accelerator, check, device, pytestconfig, tmp_path):
    """After a rank is killed, all ranks restart as new processes and continue from the saved state on the device."""
    job, second = restarted(accelerator, check, device, pytestconfig, tmp_path, TRAINS)

    for attempt in range(2):
        check_identities(check, job, attempt, 2)
    first = [job.facts[0, rank] for rank in range(2)]
    check.equal([facts["begun"] for facts in first], [0, 0], "samples done before the first attempt, by rank")
    both = {facts["pid"] for facts in first} & {facts["pid"] for facts in second}
    check.equal(both, set(), "process ids that served in both attempts")


#: The same, and in the first attempt rank 1 is killed while rank 0 waits for it inside a sum.
TRAINS_INSIDE = TRAINS.replace(
    """    if attempt == 0:
        wait_for(f"{attempt}-0.json", f"{attempt}-1.json")
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600)
""",
    """    if attempt == 0:
        if rank == 1:
            wait_for("0-0.json", "inside")
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)
        write("inside", "")
        summed([1])
        time.sleep(600)
""",
)


@case("elasticity.restart.inside", requires=NEEDS, deadline=300)
def test_restart_inside(accelerator, check, device, pytestconfig, tmp_path):
    """After a rank is killed while the other waits for it in a sum, all ranks restart and the sum is complete."""
    job, _ = restarted(accelerator, check, device, pytestconfig, tmp_path, TRAINS_INSIDE)

    check_identities(check, job, 1, 2)


#: The third host and its launcher are killed once all ranks have reported; the ranks that are left end themselves.
LOSES_A_HOST = """
def lose_the_last_of_three_hosts(begun):
    host = os.environ["JOB_HOST"]
    report(begun=begun, host=host)
    wait_for("0-0.json", "0-1.json", "0-2.json")
    if host == "2":
        (folder / "died").touch()
        os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    wait_for("died")
    sys.exit("a rank does not respond")
"""

#: Least squares over numbered samples, in exact fractions, so that the order of sums changes nothing. Three hosts take
#: two steps with two micro-batches each. Then the last host dies, and two hosts continue with three micro-batches each.
SHRINKS = (
    ON_DEVICE
    + LOSES_A_HOST
    + """
from fractions import Fraction
BATCH, MICRO, STEPS, RATE = 12, 2, 4, Fraction(1, 64)
world, host = int(os.environ["WORLD_SIZE"]), os.environ["JOB_HOST"]
attempt, accumulation = 3 - world, BATCH // (MICRO * world)
if world == 2 and not (folder / "died").exists():
    time.sleep(600)  # the third host is late; these ranks are restarted when it joins
done = max((int(path.stem.split("-")[1]) for path in folder.glob("state-*")), default=0)
weight = Fraction((folder / f"state-{done}").read_text() if done else "1/2")
begun = done
join()
while done < STEPS:
    if world == 3 and done == STEPS // 2:
        lose_the_last_of_three_hosts(begun)
    first = BATCH * done + MICRO * accumulation * rank
    inputs = [sample % 7 - 3 for sample in range(first, first + MICRO * accumulation)]
    # The slope of a sample is (weight x - y) x with y = 3 x + 1.
    squares, products = summed([x * x for x in inputs], [(3 * x + 1) * x for x in inputs])
    weight -= RATE * (weight * squares - products) / BATCH
    done += 1
    if rank == 0:
        write(f"state-{done}", str(weight))
    wait_for(f"state-{done}")
report(begun=begun, host=host, weight=str(weight), accumulation=accumulation)
"""
)


def expected_weight():
    """Return the exact weight after four steps of 12 samples in one process; the targets are 3 x + 1."""
    weight = Fraction(1, 2)
    for step in range(4):
        inputs = [sample % 7 - 3 for sample in range(12 * step, 12 * step + 12)]
        weight -= Fraction(1, 64) * sum(x * (weight * x - 3 * x - 1) for x in inputs) / 12
    return weight


@case("elasticity.fewer", requires=NEEDS, deadline=300)
def test_fewer(accelerator, check, device, pytestconfig, tmp_path):
    """After one of three hosts dies, two hosts continue from the saved state and reach the same weight."""
    needs_devices(accelerator, device, 3)
    job = launch_on_hosts(tmp_path, SHRINKS, 2, 3, JOB_ACCELERATOR=pytestconfig.getoption("--accelerator"))

    # A rank that reported nothing has no facts; the comparison of WORLD_SIZE shows it.
    before, after = ([job.facts.get((attempt, rank), {}) for rank in range(3 - attempt)] for attempt in range(2))
    worlds = [facts.get("WORLD_SIZE") for facts in before + after]
    check.equal(worlds, [*"33322"], f"WORLD_SIZE of the ranks, before and after (output: {job.output})")
    check.equal(sorted(facts["host"] for facts in after), ["0", "1"], "hosts that continued")
    check.equal([facts["begun"] for facts in after], [2, 2], "steps done before the second attempt")
    check.equal([facts["accumulation"] for facts in after], [3, 3], "micro-batches of each rank")
    check.equal([facts["weight"] for facts in after], [str(expected_weight())] * 2, "the trained weight")


#: The rule of SHRINKS, and a new third host after the first step of two hosts. Then three hosts go on to the end.
RETURNS = (
    ON_DEVICE
    + LOSES_A_HOST
    + """
from fractions import Fraction
BATCH, STEPS, RATE = 12, 4, Fraction(1, 64)
world, host = int(os.environ["WORLD_SIZE"]), os.environ["JOB_HOST"]
died, shrunk = (folder / "died").exists(), (folder / "shrunk").exists()
# torchrun does not count a restart for a host that joins.
attempt = died + shrunk
if world == 2 and (shrunk or not died):
    time.sleep(600)  # another host is late; these ranks are restarted when it joins
done = max((int(path.stem.split("-")[1]) for path in folder.glob("state-*")), default=0)
weight = Fraction((folder / f"state-{done}").read_text() if done else "1/2")
begun = done
join()
while done < STEPS:
    part = BATCH // world
    inputs = [sample % 7 - 3 for sample in range(BATCH * done + part * rank, BATCH * done + part * (rank + 1))]
    squares, products = summed([x * x for x in inputs], [(3 * x + 1) * x for x in inputs])
    weight -= RATE * (weight * squares - products) / BATCH
    done += 1
    if rank == 0:
        write(f"state-{done}", str(weight))
    wait_for(f"state-{done}")
    if not died and done == 1:
        lose_the_last_of_three_hosts(begun)
    if world == 2 and done == 2:
        report(begun=begun, host=host)
        wait_for("1-0.json", "1-1.json")
        (folder / "shrunk").touch()
        time.sleep(600)
report(begun=begun, host=host, weight=str(weight))
"""
)


@case("elasticity.returns.host", requires=NEEDS, deadline=300)
def test_host_returns(accelerator, check, device, pytestconfig, tmp_path):
    """After a host has died and a new one has joined the running job, all three continue and reach the same weight."""
    needs_devices(accelerator, device, 3)
    spec = pytestconfig.getoption("--accelerator")
    job = launch_on_hosts(tmp_path, RETURNS, 2, 4, late={3: "shrunk"}, most=3, JOB_ACCELERATOR=spec)

    phases = [[job.facts.get((phase, rank), {}) for rank in range(number)] for phase, number in enumerate((3, 2, 3))]
    worlds = [facts.get("WORLD_SIZE") for phase in phases for facts in phase]
    check.equal(worlds, [*"33322333"], f"WORLD_SIZE of the ranks in the three phases (output: {job.output})")
    hosts = [sorted(facts["host"] for facts in phase) for phase in phases]
    check.equal(hosts, [[*"012"], [*"01"], [*"013"]], "hosts in the three phases")
    check.equal([[facts["begun"] for facts in phase] for phase in phases], [[0] * 3, [1] * 2, [2] * 3],
                "steps done before each phase")  # fmt: skip
    check.equal([facts["weight"] for facts in phases[2]], [str(expected_weight())] * 3, "the trained weight")


#: Ranks say when they begin, and add up on their devices.
WAITS = (
    ON_DEVICE
    + """
begun = time.time()
join()
(total,) = summed([rank + 1, 10])
report(begun=begun, total=total)
"""
)


@case("elasticity.too_few", requires=NEEDS, deadline=300)
def test_too_few_hosts(accelerator, check, device, pytestconfig, tmp_path):
    """A job with fewer hosts than it needs starts no rank; it starts all of them when the last host joins."""
    needs_devices(accelerator, device, 2)

    def join():
        (tmp_path / "joined").write_text(str(time.time()))

    # Long enough for a rank that is started too soon to say so: a forked one starts in milliseconds.
    second = threading.Timer(slowdown(), join)
    second.start()
    try:
        spec = pytestconfig.getoption("--accelerator")
        job = launch_on_hosts(tmp_path, WAITS, 2, 2, late={1: "joined"}, JOB_ACCELERATOR=spec)
    finally:
        second.cancel()

    check.equal(job.status, 0, f"the job's exit status (output: {job.output})")
    ranks = [job.facts.get((0, rank), {}) for rank in range(2)]
    check.equal([facts.get("WORLD_SIZE") for facts in ranks], ["2", "2"], "WORLD_SIZE of the ranks")
    joined = float((tmp_path / "joined").read_text())
    early = [rank for rank, facts in enumerate(ranks) if facts["begun"] < joined]
    check.equal(early, [], "ranks that began before the second host joined")
    check.equal([facts["total"] for facts in ranks], [23, 23], "the sums over both devices")
