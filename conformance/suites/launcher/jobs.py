"""torchrun jobs on this host, and the facts that their ranks report in files."""

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
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from conformance.judging.finding import environment_lacks
from conformance.process.machine import slowdown
from conformance.process.python import child_python, module_path

#: Beginning of every launched program. ``report(name=value)`` writes one file for each rank and attempt. A file appears
#: complete or not at all, as other ranks wait for it and read it at once.
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
def report(**facts):
    facts = {**{name: os.environ.get(name) for name in names}, "pid": os.getpid(), "attempt": attempt, **facts}
    write(f"{attempt}-{rank}.json", json.dumps(facts))
def wait_for(*files, seconds=150 * float(os.environ["JOB_SLOWDOWN"])):
    until = time.monotonic() + seconds
    while not all((folder / name).exists() for name in files):
        if time.monotonic() > until: sys.exit(f"{files} did not appear within {seconds} s")
        time.sleep(0.01)
"""


#: Seconds that a job may take on a free machine, less than the deadline of its case (300 s).
TIMEOUT = 280
#: Seconds between two heartbeats of a host, and how many may be missing before it counts as dead. A short interval with
#: many of them forgives a beat that is late, and finds a dead host after two seconds.
_BEAT, _MISSED_BEATS = 0.2, 10
#: Seconds that a rendezvous with enough hosts waits for further ones. All hosts of a job start at the same time.
_LAST_CALL = 0.5
#: Address at which the agents and ranks of a job meet: the name of this host may have none.
_HERE = "--local-addr=127.0.0.1"


@dataclass(frozen=True)
class Job:
    """Finished job: exit status, facts reported by (attempt, rank), and the last 800 characters of its output."""

    status: int
    facts: dict
    output: str


#: Times that a job is started whose port another program takes.
_ATTEMPTS = 3
#: A process that imports torchrun once, as that takes two seconds, and forks an agent for each host of a job. Each line
#: of its input is a job. In a job of several hosts, each host has one rank and the first has the store. The status of
#: the job is the agents' exit status that is furthest from 0; the case judges whether a killed host is an error.
#:
#: The agents look at the state of a rendezvous twenty times a second; torch 2.13 sleeps for a whole second between two
#: looks. Their limits may be fractions of a second. They do not look up the names of the functions that they record:
#: for that, torch reads source files for half a second. In a job with ``forked``, they fork their ranks (torch's start
#: method "fork"), which then need not import torch.
_AGENTS = """
import gc; gc.disable()
import atexit, dataclasses, json, logging, os, pathlib, runpy, signal, sys, time, traceback
from conformance.accelerators import registry
from conformance.process.lifetime import die_with_parent
from torch.distributed import run
from torch.distributed.elastic.rendezvous import RendezvousParameters, dynamic_rendezvous

die_with_parent()
own = os.getpid()
if hasattr(dynamic_rendezvous, "_delay"):
    dynamic_rendezvous._delay = lambda seconds: time.sleep(0.05)
if hasattr(dynamic_rendezvous, "get_method_name"):
    dynamic_rendezvous.get_method_name = lambda depth=2: "a function"

def whole_or_fraction(parameters, key, default=None, whole=RendezvousParameters.get_as_int):
    text = str(parameters.get(key, default))
    return float(text) if "." in text else whole(parameters, key, default)
RendezvousParameters.get_as_int = whole_or_fraction

def run_program(script, *arguments):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)  # those of the agent
    sys.argv = [script, *arguments]
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()

def forking(arguments, configured=run.config_from_args):
    config, _, (*_, script) = configured(arguments)
    return dataclasses.replace(config, start_method="fork"), run_program, [script]

def become_agent(job, number):
    status = 1
    try:
        os.setsid()
        die_with_parent(signal.SIGTERM, own)  # its ranks end with it
        os.environ.clear()
        os.environ.update(job["variables"], JOB_HOST=number)
        output = os.open(job["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        while number in job["late"] and not pathlib.Path(job["late"][number]).exists():
            time.sleep(0.01)
        if job["forked"]:
            atexit._clear()  # ranks run what they have registered themselves
            run.config_from_args = forking
            # To format a traceback, torch's own formatter imports its compiler, which takes each agent a second.
            for logger in logging.root.manager.loggerDict.values():
                for handler in getattr(logger, "handlers", ()):
                    handler.setFormatter(logging.Formatter())
        run.main([option.replace("IS_HOST", str(number == "0")) for option in job["options"]])
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
            become_agent(job, str(number))
    print("agents", *forks, flush=True)
    ends = [os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]) for fork in forks]
    print("status", max(ends, key=abs), flush=True)
"""


class Agents:
    """Fork server of torchrun's agents. It ends with the process that owns it, as its input ends then."""

    def __init__(self):
        self._process = subprocess.Popen(child_python(_AGENTS), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._read = b""
        atexit.register(self.close)

    def close(self):
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.kill()  # no job is running: run() ends the agents of a job that takes too long
        self._process.wait()

    def run(self, job):
        """Run a job and return its exit status; after the timeout, end its agents and raise TimeoutExpired."""
        self._process.stdin.write(json.dumps(job).encode() + b"\n")
        self._process.stdin.flush()
        limit = TIMEOUT * job["slowdown"]
        until, agents = time.monotonic() + limit, []
        while time.monotonic() < until:
            line = self._read_line(until - time.monotonic())
            if line is None:
                break
            kind, *numbers = line
            if kind == "status":
                return int(numbers[0])
            agents = list(map(int, numbers))
        self._end(agents)
        raise subprocess.TimeoutExpired("torchrun", limit)

    def _end(self, agents):
        """End the agents of a job that takes too long, and this fork server, which would report the job's end later."""
        # SIGTERM lets torchrun end its ranks; after SIGKILL they would stay.
        for end in (signal.SIGTERM, signal.SIGKILL):
            for agent in agents:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(agent, end)  # each agent leads a process group of its own
            if self._read_line(10) is not None:
                break
        _agents.cache_clear()
        self.close()

    def _read_line(self, timeout):
        """Return the next line of the fork server, split at spaces, or None if none came within the timeout."""
        pipe = self._process.stdout.fileno()
        while b"\n" not in self._read:
            if not select.select([pipe], [], [], timeout)[0]:
                return None
            self._read += (found := os.read(pipe, 4096))
            if not found:
                _agents.cache_clear()  # the next job starts a new fork server
                raise RuntimeError("the fork server of torchrun's agents has ended; its error output says why")
        line, _, self._read = self._read.partition(b"\n")
        return line.decode().split()


@functools.cache
def _agents(pid):
    """Return the fork server of the process with that id, which is the cache's key: a forked child needs its own."""
    return Agents()


def launch(folder, program, ranks, *options, inherited=None, arguments=(), under=(), forked=False, **environment):
    """Run ``program`` on ``ranks`` ranks under torchrun and return the Job, or raise TimeoutExpired.

    Without a number of ``ranks``, torchrun takes it from its environment. ``arguments`` are the program's own.
    ``under`` is a command that starts the program in each rank. ``inherited`` are the environment variables of
    torchrun, by default those of this process. ``environment`` are further variables. ``forked`` ranks start in
    milliseconds; it is for cases that are not about the start of a program.
    """
    number = [] if ranks is None else [f"--nproc-per-node={ranks}"]
    variables = {**(os.environ if inherited is None else inherited), **environment}
    options = ("--standalone", _HERE, *number, *options)
    return _run(folder, program, variables, 1, *options, arguments=arguments, under=under, forked=forked)


def launch_on_hosts(folder, program, fewest, hosts, late=None, most=None, **environment):
    """Run ``program`` as on several hosts, with one agent and one forked rank for each, and return the Job.

    The job continues while at least ``fewest`` hosts are alive, and has at the ``most`` so many; by default all.
    JOB_HOST is a host's number. Host 0 has the rendezvous; any other may be killed. ``late`` has the file that a host
    waits for before it joins, by the host's number. ``environment`` are further variables.
    """
    # Port 0 asks the system for a free port.
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # On a busy machine, a living host may be late.
    beat, last_call = _BEAT * slowdown(), _LAST_CALL * slowdown()
    limits = f"last_call_timeout={last_call:.3f},keep_alive_interval={beat:.3f},keep_alive_max_attempt={_MISSED_BEATS}"
    rendezvous = f"--rdzv-conf={limits},is_host=IS_HOST"
    options = [rendezvous, _HERE, f"--nnodes={fewest}:{most or hosts}", "--nproc-per-node=1", "--max-restarts=2",
               "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=job"]  # fmt: skip
    return _run(folder, program, {**os.environ, **environment}, hosts, *options, late=late, forked=True)


def _run(folder, program, variables, hosts, *options, arguments=(), under=(), late=None, forked=False):
    script, output = folder / "program.py", folder / "output.txt"
    script.write_text(_PREAMBLE + program, encoding="utf-8")
    busy = slowdown()
    known = {
        "OMP_NUM_THREADS": "1",
        "JOB_PATH": json.dumps(module_path()),
        "JOB_SLOWDOWN": str(busy),
        # torchrun would keep its store for the next attempt. A rank then may find the address of a rank that is gone:
        # after half of the restarts, gloo of torch 2.13 ended with "Connection refused".
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    # With --no-python the command of a rank is whatever stands here.
    command = ["--no-python", *under, sys.executable, str(script)] if under else [str(script)]
    # Without a folder for logs, torchrun makes one in the temporary folder of the machine and leaves it there.
    logs = f"--log-dir={folder / 'logs-of-torchrun'}"
    asked = {
        "slowdown": busy,
        "variables": {**known, **variables},
        "options": [logs, *options, "--monitor-interval=0.02", *command, *arguments],
        "hosts": hosts,
        "forked": forked,
        "late": {str(number): str(folder / file) for number, file in (late or {}).items()},
        "output": str(output),
    }
    for _ in range(_ATTEMPTS):
        status = _agents(os.getpid()).run(asked)
        facts = {
            tuple(map(int, each.stem.split("-"))): json.loads(each.read_text()) for each in folder.glob("*-*.json")
        }
        text = output.read_text(encoding="utf-8", errors="replace")
        if status == 0 or facts or not is_of_a_taken_port(text):
            break
    return Job(status, facts, text.strip()[-800:])


def is_of_a_taken_port(output):
    """Return whether another program took the port that torchrun had found free: no rank has begun its work then."""
    return "eaddrinuse" in output.lower() or "address already in use" in output.lower()


def needs_devices(accelerator, device, ranks):
    """Skip the case if each rank needs a device of its own, and this machine has fewer."""
    accelerator.current_device()  # each rank asks for it: a device that does not tell it is named here, not in a log
    shared = device.type == "cpu" or getattr(accelerator, "simulated", False)
    if not shared and accelerator.device_count() < ranks:
        environment_lacks(f"the case needs {ranks} devices, and this machine has {accelerator.device_count()}")


def check_identities(check, job, attempt, ranks):
    """Check that the ranks of an attempt are numbered from 0, know the world size, and are separate processes."""
    found = [job.facts.get((attempt, rank), {}) for rank in range(ranks)]
    expected = [[str(rank), str(rank), str(ranks), str(ranks)] for rank in range(ranks)]
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    values = [[facts.get(name) for name in names] for facts in found]
    check.equal(values, expected, f"{names} of the ranks in attempt {attempt}")
    check.equal(len({facts.get("pid") for facts in found}), ranks, "number of different processes")


def gone(pid):
    """Return whether the process does not exist any more, or is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return True
    # The state follows the command's name, which is in parentheses and may hold spaces and parentheses itself.
    return stat.rpartition(")")[2].split()[0] == "Z"
