"""Cases with processes of their own: one rank on each device, and a rank that dies inside a collective."""

from __future__ import annotations

from conformance.accelerators.capabilities import COMM, COMM_DEATH, COMM_DTYPE
from conformance.numerics.budgets import load_table
from conformance.plan.case import case
from conformance.suites.elasticity.test_restart import ON_DEVICE
from conformance.suites.launcher.jobs import check_identities, launch, needs_devices

LIMITS = load_table(__file__, "limits.toml")
#: Most ranks of one host that the case starts; each takes seconds of processor time.
MOST = 8

EVERYWHERE = (
    ON_DEVICE
    + """
join()
report(sums=summed([rank + 1], [10 ** rank], [1]), device=live.current_device())
"""
)


@case("comm.world", requires=[COMM, COMM_DTYPE.on("float32")], axes={"world": ("all",)}, deadline=300)
def test_all_devices(accelerator, check, device, world, pytestconfig, tmp_path):
    """One rank on each device of the machine takes part in a sum, and two ranks where there is one device."""
    size = min(MOST, max(2, accelerator.device_count()))
    needs_devices(accelerator, device, size)

    job = launch(tmp_path, EVERYWHERE, size, forked=True, JOB_ACCELERATOR=pytestconfig.getoption("--accelerator"))

    check.equal(job.status, 0, f"the job's exit status (output: {job.output})")
    check_identities(check, job, 0, size)
    right = [size * (size + 1) // 2, (10**size - 1) // 9, size]
    for rank in range(size):
        check.equal(job.facts[0, rank]["sums"], right, f"sums on rank {rank}")
    places = sorted({job.facts[0, rank]["device"] for rank in range(size)})
    check.equal(places, list(range(min(size, accelerator.device_count()))), "devices that the ranks used")
    check.metric("world", size)


#: Rank 2 waits for a child that takes its place in the group: torchrun would end all ranks as soon as one of its own
#: processes dies. A timer ends a rank that gets no error.
DIES = (
    """
import threading
if rank == 2 and (child := os.fork()):
    os.waitpid(child, 0)
    write("dead", "")
    wait_for("0-0.json", "0-1.json")
    sys.exit(0)
"""
    + ON_DEVICE
    + """
join()
first = summed([rank + 1])
if rank == 2:
    wait_for("inside-0", "inside-1")
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)
def nothing_happened():
    report(first=first, error="", seconds=None)
    os._exit(0)
limit = threading.Timer(2 * float(os.environ["JOB_SECONDS"]), nothing_happened)
limit.start()
write(f"inside-{rank}", "")
try:
    second = summed([rank + 1])
    error = f"no error, and the sum {second}"
except (RuntimeError, OSError) as caught:
    error = f"{type(caught).__name__}: {caught}"
wait_for("dead")
seconds = time.time() - (folder / "dead").stat().st_mtime
limit.cancel()
report(first=first, error=error[:200], seconds=seconds)
os._exit(0)
"""
)


@case("comm.death", requires=[COMM_DEATH], deadline=300)
def test_death(accelerator, check, device, pytestconfig, tmp_path):
    """If a rank dies in a collective, the other ranks get an error in bounded time."""
    needs_devices(accelerator, device, 3)
    most = LIMITS["seconds_after_death"]

    job = launch(tmp_path, DIES, 3, JOB_ACCELERATOR=pytestconfig.getoption("--accelerator"), JOB_SECONDS=str(most))

    for rank in range(2):
        facts = job.facts.get((0, rank), {})
        check.equal(facts.get("first"), [6], f"the sum on rank {rank} before the death (output: {job.output})")
        error, seconds = facts.get("error", ""), facts.get("seconds")
        check.that(error and not error.startswith("no error"), f"rank {rank} has no error after the death: {error!r}")
        check.that(seconds is not None and seconds <= most, f"rank {rank} has its error {seconds} s after the death")
        check.metric(f"seconds_{rank}", round(seconds, 2))
