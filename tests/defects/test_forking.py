"""A copy that dies or hangs costs one verdict; another copy judges what is left."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.running import environment

from .catalogue.processes import CASE, INNOCENT

ROOT = Path(__file__).parents[2]
#: In a process of its own: this one may have threads, and then it must not fork.
PROGRAM = """
import json, sys
from tests.defects import bench, forking
from tests.defects.catalogue import by_name
names, cases = json.loads(sys.argv[1])
bench.select(cases)
forking.prepare()
forking.DEADLINE = 20.0
jobs = [forking.Job(by_name(name), cases) for name in names]
forking.run_all(jobs, 1, lambda done: None)
def ends(job): return {case: [verdict.outcome.value, verdict.reason.value] for case, verdict in job.verdicts.items()}
print(json.dumps({job.name: ends(job) for job in jobs}))
"""
ENDS = {
    "an operator spins": ["fail", "hang"],
    "an operator aborts": ["fail", "crash"],
    "an operator ends the process with 0": ["fail", "crash"],
    "an operator raises SystemExit": ["fail", "raised"],
    "the device is unusable afterwards": ["fail", "poisoned"],
}


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, list[str]]]:
    folder = tmp_path_factory.mktemp("forking")
    # Only the tests may be found by path: beside them stands a folder conformance/ that is not the installed package.
    (folder / "tests").symlink_to(ROOT / "tests")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([list(ENDS), [INNOCENT[0], CASE, INNOCENT[1]]])],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, dict[str, list[str]]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.long
@pytest.mark.parametrize("name", ENDS)
def test_the_way_a_copy_ends_is_a_verdict(name: str, verdicts: dict[str, dict[str, list[str]]]):
    expected = {INNOCENT[0]: ["pass", "native"], CASE: ENDS[name], INNOCENT[1]: ["pass", "native"]}

    assert verdicts[name] == expected
