"""torch.distributed.elastic restarts what has died."""

from __future__ import annotations

from conformance.accelerators.capabilities import COMM
from conformance.case import case
from conformance.suites.launcher.jobs import check_identities, launch

#: Eight samples are added up in steps of four. In its first attempt rank 1 is killed between two steps.
TRAINS = """
state = folder / "state.json"
total, done = json.loads(state.read_text()) if state.exists() else (0, 0)
begun, world = done, int(os.environ["WORLD_SIZE"])
while done < 8:
    part = sum(sample ** 2 for sample in range(done + rank, done + 4, world))
    (folder / f"part-{attempt}-{done}-{rank}").write_text(str(part))
    wait_for(*(f"part-{attempt}-{done}-{other}" for other in range(world)))
    total += sum(int((folder / f"part-{attempt}-{done}-{other}").read_text()) for other in range(world))
    done += 4
    if rank == 0:
        state.with_suffix(".part").write_text(json.dumps([total, done]))
        state.with_suffix(".part").replace(state)
    wait_for("state.json")
    told(begun=begun, total=total)
    if attempt == 0:
        wait_for(f"{attempt}-0.json", f"{attempt}-1.json")
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600)
told(begun=begun, total=total)
"""


@case("elasticity.restart", requires=[COMM], deadline=300)
def test_restart(check, tmp_path):
    """After a kill all ranks are new and go on from what was saved: the whole batch, and the sum of all samples."""
    job = launch(tmp_path, TRAINS, 2, "--max-restarts=1")

    check.equal(job.status, 0, f"the job's status ({job.words})")
    for attempt in range(2):
        check_identities(check, job, attempt, 2)
    first, second = ([job.told[attempt, rank] for rank in range(2)] for attempt in range(2))
    check.equal([one["begun"] for one in first + second], [0, 0, 4, 4], "samples before each attempt")
    check.equal([one["total"] for one in second], [sum(sample**2 for sample in range(8))] * 2, "the sums")
    check.equal({one["pid"] for one in first} & {one["pid"] for one in second}, set(), "processes that served twice")
