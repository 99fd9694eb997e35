"""Jobs of torchrun on this host, and what their ranks have written down."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import select
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from conformance.process.python import child_python, module_path

#: What a launched program begins with: ``told(name=value)`` writes down, once a rank and attempt. What it writes is
#: whole or not there, as other ranks read it at once.
_PREAMBLE = """
import gc; gc.disable()  # torch is imported sooner, and a job lives for seconds
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


#: Seconds that a job may take, less than its case has.
LONGEST = 280


@dataclass(frozen=True)
class Job:
    """A job that has ended. ``told`` is what its ranks wrote, by attempt and rank."""

    status: int
    told: dict
    words: str


#: A process that has imported torchrun, as that takes two seconds, and forks an agent for each host of a job. A line of
#: its input is a job. Hosts of several have one rank each, the first has the store; whether one was killed is for the
#: case to judge. A status that is not 0 is the job's.
_AGENTS = """
import gc; gc.disable()
import json, os, signal, sys, traceback
from conformance.process.lifetime import die_with_parent
from torch.distributed.run import main

die_with_parent()
own = os.getpid()

def become_agent(job, number):
    status = 1
    try:
        os.setsid()
        die_with_parent(signal.SIGTERM, own)  # its ranks end with it
        os.environ.clear()
        os.environ.update(job["variables"], JOB_HOST=str(number))
        words = os.open(job["words"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(words, 1)
        os.dup2(words, 2)
        main([option.replace("IS_HOST", str(not number)) for option in job["options"]])
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)

for line in sys.stdin:
    job = json.loads(line)
    forks = []
    for number in range(job["hosts"]):
        forks.append(os.fork())
        if not forks[-1]:
            become_agent(job, number)
    print("agents", *forks, flush=True)
    ends = [os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]) for fork in forks]
    print("status", max(ends, key=abs), flush=True)
"""


class Agents:
    """The process that forks agents, for one process; it ends with that, as its input does."""

    def __init__(self):
        self._process = subprocess.Popen(child_python(_AGENTS), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._read = b""
        atexit.register(self.close)

    def close(self):
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.kill()  # it has no job; those that were cut short have ended with their agents
        self._process.wait()

    def run(self, job):
        """The status of a job that has ended, or TimeoutExpired; then its agents are dead."""
        self._process.stdin.write(json.dumps(job).encode() + b"\n")
        self._process.stdin.flush()
        until, agents = time.monotonic() + LONGEST, []
        while time.monotonic() < until:
            kind, *numbers = self._answer(until - time.monotonic())
            if kind == "status":
                return int(numbers[0])
            agents = list(map(int, numbers))
        for agent in agents:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(agent, signal.SIGKILL)
        raise subprocess.TimeoutExpired("torchrun", LONGEST)

    def _answer(self, patience):
        """The next line, in words; as a job that goes on where there is none in time."""
        pipe = self._process.stdout.fileno()
        while b"\n" not in self._read:
            if not select.select([pipe], [], [], patience)[0]:
                return ["agents"]
            self._read += (found := os.read(pipe, 4096))
            if not found:
                _agents.cache_clear()
                raise RuntimeError("the process of torchrun's agents has ended")
        line, _, self._read = self._read.partition(b"\n")
        return line.decode().split()


@functools.cache
def _agents(process):
    return Agents()


def launch(folder, program, ranks, *options, inherited=None, **environment):
    """Run ``program`` on ``ranks`` ranks under torchrun; ends in time, or in TimeoutExpired.

    ``inherited`` are the variables of torchrun's parent, this process' own where they are not given.
    """
    options = ["--standalone", f"--nproc-per-node={ranks}", *options]
    variables = {**(os.environ if inherited is None else inherited), **environment}
    return _run(folder, program, variables, 1, *options)


def launch_on_hosts(folder, program, fewest, hosts):
    """The same with an agent for each rank, as on so many hosts, of which the ``fewest`` are enough to go on.

    JOB_HOST is a host's number. Host 0 has the rendezvous; any other may be killed.
    """
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    # Seconds until a host that says nothing is taken for dead, and until its place is given up.
    rendezvous = "--rdzv-conf=last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3,is_host=IS_HOST"
    options = [rendezvous, f"--nnodes={fewest}:{hosts}", "--nproc-per-node=1", "--max-restarts=2",
               "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=job"]  # fmt: skip
    return _run(folder, program, dict(os.environ), hosts, *options)


def _run(folder, program, variables, hosts, *options):
    script, words = folder / "program.py", folder / "words.txt"
    script.write_text(_PREAMBLE + program, encoding="utf-8")
    status = _agents(os.getpid()).run({
        "variables": {"OMP_NUM_THREADS": "1", "JOB_PATH": json.dumps(module_path()), **variables},
        "options": [*options, "--monitor-interval=0.02", str(script)],
        "hosts": hosts,
        "words": str(words),
    })  # fmt: skip
    told = {tuple(map(int, path.stem.split("-"))): json.loads(path.read_text()) for path in folder.glob("*-*.json")}
    return Job(status, told, words.read_text(encoding="utf-8", errors="replace").strip()[-800:])


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
