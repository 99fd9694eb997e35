"""Jobs of torchrun on this host, and what their ranks have written down."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from conformance.child_python import child_python, module_path

#: What a launched program begins with: ``told(name=value)`` writes down, once a rank and attempt.
_PREAMBLE = """
import json, os, pathlib, signal, sys, time
sys.path[:] = json.loads(os.environ["JOB_PATH"])
folder = pathlib.Path(__file__).parent
rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
def told(**facts):
    facts = {**{name: os.environ.get(name) for name in names}, "pid": os.getpid(), "attempt": attempt, **facts}
    there = folder / f"{attempt}-{rank}.json"
    there.with_suffix(".part").write_text(json.dumps(facts))
    there.with_suffix(".part").replace(there)
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


def launch(folder, program, ranks, *options, **environment):
    """Run ``program`` on ``ranks`` ranks under torchrun; ends in time, or in TimeoutExpired."""
    script = folder / "program.py"
    script.write_text(_PREAMBLE + program, encoding="utf-8")
    command = ["--standalone", f"--nproc-per-node={ranks}", "--monitor-interval=0.02", *options, str(script)]
    done = subprocess.run(
        child_python("from torch.distributed.run import main; main()", *command),
        env={**os.environ, "OMP_NUM_THREADS": "1", "JOB_PATH": json.dumps(module_path()), **environment},
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
