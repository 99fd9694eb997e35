"""Jobs of torchrun on this host, and what their ranks have written down."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

from conformance.child_python import child_python, module_path

#: What a launched program begins with: ``told(name=value)`` writes down, once a rank and attempt. What it writes is
#: whole or not there, as other ranks read it at once.
_PREAMBLE = """
import json, os, pathlib, signal, sys, time
sys.path[:] = json.loads(os.environ["JOB_PATH"])
folder = pathlib.Path(__file__).parent
rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
def write(name, text):
    new = folder / f"new.{os.getpid()}"
    new.write_text(text)
    new.replace(folder / name)
def told(**facts):
    facts = {**{name: os.environ.get(name) for name in names}, "pid": os.getpid(), "attempt": attempt, **facts}
    write(f"{attempt}-{rank}.json", json.dumps(facts))
def wait_for(*files, seconds=150):
    until = time.monotonic() + seconds
    while not all((folder / name).exists() for name in files):
        if time.monotonic() > until: sys.exit(f"{files} did not come")
        time.sleep(0.01)
"""


@dataclass(frozen=True)
class Job:
    """A job that has ended. ``told`` is what its ranks wrote, by attempt and rank."""

    status: int
    told: dict
    words: str


#: Agents of hosts with one rank each, the first of which has the store. They are forks of one process, as torch takes
#: a second to import. Whether a host was killed is for the case to judge; a status that is not 0 is the job's.
_AGENTS = """
import os, sys, traceback
from torch.distributed.run import main
hosts, options = int(sys.argv[1]), sys.argv[2:]
forks = []
for number in range(hosts):
    child = os.fork()
    if not child:
        status = 1
        try:
            os.environ["JOB_HOST"] = str(number)
            options[0] += f",is_host={not number}"
            main(options)
            status = 0
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(status)
    forks.append(child)
ends = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in forks]
sys.exit(max(ends))
"""


def launch(folder, program, ranks, *options, inherited=None, **environment):
    """Run ``program`` on ``ranks`` ranks under torchrun; ends in time, or in TimeoutExpired.

    ``inherited`` are the variables of torchrun's parent, this process' own where they are not given.
    """
    options = ["--standalone", f"--nproc-per-node={ranks}", *options]
    variables = {**(os.environ if inherited is None else inherited), **environment}
    return _run(folder, program, variables, "from torch.distributed.run import main; main()", *options)


def launch_on_hosts(folder, program, fewest, hosts):
    """The same with an agent for each rank, as on so many hosts, of which the ``fewest`` are enough to go on.

    JOB_HOST is a host's number. Host 0 has the rendezvous; any other may be killed.
    """
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    # Seconds until a host that says nothing is taken for dead, and until its place is given up.
    rendezvous = "--rdzv-conf=last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"
    options = [rendezvous, f"--nnodes={fewest}:{hosts}", "--nproc-per-node=1", "--max-restarts=2",
               "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=job"]  # fmt: skip
    return _run(folder, program, dict(os.environ), _AGENTS, str(hosts), *options)


def _run(folder, program, variables, launcher, *options):
    script = folder / "program.py"
    script.write_text(_PREAMBLE + program, encoding="utf-8")
    done = subprocess.run(
        child_python(launcher, *options, "--monitor-interval=0.02", str(script)),
        env={"OMP_NUM_THREADS": "1", "JOB_PATH": json.dumps(module_path()), **variables},
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    told = {tuple(map(int, path.stem.split("-"))): json.loads(path.read_text()) for path in folder.glob("*-*.json")}
    return Job(done.returncode, told, done.stderr.strip()[-800:])


def check_identities(check, job, attempt, ranks):
    """Ranks are numbered in order, know how many they are, and are processes of their own."""
    found = [job.told.get((attempt, rank), {}) for rank in range(ranks)]
    expected = [[str(rank), str(rank), str(ranks), str(ranks)] for rank in range(ranks)]
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    check.equal([[one.get(name) for name in names] for one in found], expected, f"{names} in attempt {attempt}")
    check.equal(len({one.get("pid") for one in found}), ranks, "processes")


def gone(pid):
    """Whether no process has that number any more, or only a dead one."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"
