"""A trivial all-reduce on 2 and 4 ranks: what one distributed case costs here, and with the launchers of others."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.process import PLUGINS, run
from benchmarks.table import Row, main, times

WORLDS = (2, 4)
GOALS = {2: "≤ 6 ms", 4: "≤ 15 ms"}

_HERE = """
import torch
import torch.distributed as dist
from conformance.case import case

@case("bench.all_reduce", axes={{"n": [str(n) for n in range({cases})]}}, world_size={world})
def test_all_reduce(n, world_size, group):
    total = torch.ones(4)
    dist.all_reduce(total)
    assert total.tolist() == [world_size] * 4
"""
_CONTINUOUS = """
import torch
import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcContinuousTest

class TestAllReduce(MultiProcContinuousTest):
    world_size = {world}

    @classmethod
    def backend_str(cls):
        return "gloo"

def _body(self):
    total = torch.ones(4)
    dist.all_reduce(total)
    assert total.tolist() == [self.world_size] * 4

for _n in range({cases}):
    setattr(TestAllReduce, f"test_{{_n:04d}}", _body)
"""
_PER_TEST = """
import torch
import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcessTestCase

class TestAllReduce(MultiProcessTestCase):
    @property
    def world_size(self):
        return {world}

    def setUp(self):
        super().setUp()
        self._spawn_processes()

def _body(self):
    store = dist.FileStore(self.file_name, self.world_size)
    dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size)
    total = torch.ones(4)
    dist.all_reduce(total)
    assert total.tolist() == [self.world_size] * 4
    dist.destroy_process_group()

for _n in range({cases}):
    setattr(TestAllReduce, f"test_{{_n:04d}}", _body)
"""
_DEEPSPEED = """
import sys
sys.path.insert(0, {folder!r})
import pytest
import torch
import deepspeed.comm as dist
from common import DistributedTest

class TestAllReduce(DistributedTest):
    world_size = {world}
    reuse_dist_env = {reuse}

    @pytest.mark.parametrize("n", range({cases}))
    def test_all_reduce(self, n):
        total = torch.ones(4)
        dist.all_reduce(total)
        assert total.tolist() == [self.world_size] * 4
"""
#: What DeepSpeed's own tests/conftest.py does for its launcher.
_DEEPSPEED_CONFTEST = """
import pytest

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item):
    item.cls()(item._request)
    item.runtest = lambda: True

def pytest_runtest_teardown(item, nextitem):
    if item.cls.reuse_dist_env and not nextitem:
        test = item.cls()
        for count, pool in test._pool_cache.items():
            test._close_pool(pool, count, force=True)
"""


@dataclass(frozen=True)
class Launcher:
    """A way to run ranks under pytest. ``cases`` is how many of them are worth the time."""

    name: str
    source: str
    cases: int
    arguments: tuple[str, ...] = ()
    ours: bool = False
    python: str = sys.executable
    conftest: str = ""
    fields: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True)
class Measured:
    """Milliseconds a case: the first one, and the median of the others."""

    first: float
    median: float
    p90: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cases", type=int, default=200, help="cases a run (default: 200)")
    parser.add_argument("--deepspeed-tests", metavar="FOLDER", help="tests/unit of a checkout of DeepSpeed")
    parser.add_argument("--deepspeed-python", default=sys.executable, help="an interpreter that has DeepSpeed")


def launchers(arguments: argparse.Namespace) -> list[Launcher]:
    fresh = ("--accelerator=cpu", "-n0", "--rank-isolation=fork")
    return [
        Launcher("here", _HERE, arguments.cases, ("--accelerator=cpu", "-n0"), ours=True),
        Launcher("here, fresh ranks a case", _HERE, max(10, arguments.cases // 5), fresh),
        *(deepspeed(arguments, reuse=reuse) for reuse in (False, True) if arguments.deepspeed_tests),
        Launcher("MultiProcContinuousTest", _CONTINUOUS, arguments.cases),
        # It starts its processes anew for each case, seconds each.
        Launcher("MultiProcessTestCase", _PER_TEST, max(3, arguments.cases // 50)),
    ]


def deepspeed(arguments: argparse.Namespace, *, reuse: bool) -> Launcher:
    return Launcher(
        f"DeepSpeed's DistributedTest{', reuse_dist_env' if reuse else ''}",
        _DEEPSPEED,
        max(4, arguments.cases // (20 if reuse else 40)),
        python=arguments.deepspeed_python,
        conftest=_DEEPSPEED_CONFTEST,
        fields=(("reuse", reuse), ("folder", str(Path(arguments.deepspeed_tests).absolute()))),
    )


def measure(arguments: argparse.Namespace) -> list[Row]:
    return [row for world in WORLDS for row in rows(world, launchers(arguments))]


def rows(world: int, all_of_them: Sequence[Launcher]) -> list[Row]:
    measured = [(launcher, one_run(launcher, world)) for launcher in all_of_them]
    ours = next(numbers for launcher, numbers in measured if launcher.ours)
    found = [Row(f"first case on {world} ranks, after collection (ms)", f"{ours.first:.0f}", "≤ 500 ms")]
    found.append(Row(f"a case on {world} ranks, median (ms)", f"{ours.median:.1f} (p90 {ours.p90:.1f})", GOALS[world]))
    for launcher, theirs in measured:
        if not launcher.ours:
            peer = f"{theirs.median:.1f}, first {theirs.first:.0f} ({launcher.name})"
            found.append(Row(f"… on {world} ranks", f"{ours.median:.1f}", "", peer, times(theirs.median / ours.median)))
    return found


def one_run(launcher: Launcher, world: int) -> Measured:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = launcher.source.format(world=world, cases=launcher.cases, **dict(launcher.fields))
        (folder / "test_ranks.py").write_text(source, encoding="utf-8")
        (folder / "conftest.py").write_text(launcher.conftest, encoding="utf-8")
        finished = run(
            [launcher.python, "-m", "pytest", "-q", "-p", "each_case", "-p", "no:cacheprovider", "-p", "no:randomly",
             "test_ranks.py", *launcher.arguments],
            cwd=folder,
            environment={
                "PYTHONPATH": str(PLUGINS),
                "EACH_CASE_FILE": str(folder / "times.json"),
                "LOCAL_SIZE": str(world),  # how many devices DeepSpeed's CPU accelerator says there are
            },
        )  # fmt: skip
        if finished.status:
            tail = "\n".join(finished.output.splitlines()[-20:])
            raise SystemExit(f"{launcher.name} on {world} ranks ended with status {finished.status}:\n{tail}")
        seconds = json.loads((folder / "times.json").read_text(encoding="utf-8"))["seconds"]
    first, *rest = (1e3 * value for value in seconds)
    return Measured(first, statistics.median(rest), sorted(rest)[int(0.9 * len(rest))])


if __name__ == "__main__":
    main(__doc__ or "", add_arguments, measure)
