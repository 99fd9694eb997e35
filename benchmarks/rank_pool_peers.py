"""Launchers of a trivial all-reduce on ranks: the pool here, PyTorch's two test launchers, and DeepSpeed's."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.process import PLUGINS

DEEPSPEED = "deepspeed==0.19.8"
#: Packages that its setup.py needs, and packages that it imports besides torch and this project's dependencies.
_TO_BUILD = ("setuptools", "wheel", "ninja", "packaging", "py-cpuinfo")
_TO_IMPORT = ("einops", "hjson", "msgpack", "psutil", "pydantic", "tqdm")

_HERE = """
import torch
import torch.distributed as dist
from conformance.plan.case import case

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
import pytest
import torch
import deepspeed.comm as dist
from {module} import DistributedTest

class TestAllReduce(DistributedTest):
    world_size = {world}
    reuse_dist_env = {reuse}

    @pytest.mark.parametrize("n", range({cases}))
    def test_all_reduce(self, n):
        total = torch.ones(4)
        dist.all_reduce(total)
        assert total.tolist() == [self.world_size] * 4
"""
#: Calls DeepSpeed's launcher with pytest's request in place of the test, and closes its pools after the last test.
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
    """Way to run ranks under pytest.

    ``cases`` is the number of cases that it runs, ``goal`` the goal for the ratio of the medians, and ``paths`` holds
    folders for the module path of its Python.
    """

    name: str
    source: str
    cases: int
    arguments: tuple[str, ...] = ()
    ours: bool = False
    python: str = sys.executable
    conftest: str = ""
    fields: tuple[tuple[str, object], ...] = ()
    paths: tuple[Path, ...] = ()
    goal: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cases", type=int, default=200, help="cases per run (default: 200)")
    parser.add_argument("--deepspeed", action="store_true", help=f"also {DEEPSPEED}, installed by pip; takes minutes")
    parser.add_argument("--deepspeed-cases", type=int, default=5, help="cases of DeepSpeed's launcher (default: 5)")
    parser.add_argument("--deepspeed-tests", type=Path, metavar="FOLDER", help="the tests of a checkout of DeepSpeed")
    parser.add_argument("--deepspeed-python", help="an interpreter that has DeepSpeed; pip then installs nothing")
    parser.add_argument("--work", type=Path, default=Path(".bench"), help="where pip installs it (default: .bench)")


def launchers(arguments: argparse.Namespace) -> list[Launcher]:
    fresh = ("--accelerator=cpu", "-n0", "--rank-isolation=fork")
    return [
        Launcher("here", _HERE, arguments.cases, ("--accelerator=cpu", "-n0"), ours=True),
        Launcher("here, fresh ranks a case", _HERE, max(10, arguments.cases // 5), fresh),
        *(deepspeeds(arguments) if arguments.deepspeed or arguments.deepspeed_tests else ()),
        Launcher("MultiProcContinuousTest", _CONTINUOUS, arguments.cases),
        # It starts its processes anew for each case, seconds each.
        Launcher("MultiProcessTestCase", _PER_TEST, max(3, arguments.cases // 50)),
    ]


def deepspeeds(arguments: argparse.Namespace) -> list[Launcher]:
    """Return DeepSpeed's launcher if a checkout is given, otherwise our model of it on the installed DeepSpeed."""
    paths: tuple[Path, ...] = ()
    python = arguments.deepspeed_python or sys.executable
    if not arguments.deepspeed_python:
        paths = (install(arguments.work.absolute()),)
    tests = arguments.deepspeed_tests
    if tests is None:
        sys.stderr.write(
            f"{DEEPSPEED} from pip has no tests/unit/common.py, so a model of its DistributedTest is measured. "
            "For the launcher itself, give --deepspeed-tests FOLDER with the tests of a checkout.\n"
        )
        return [_deepspeed(arguments, "a model of DistributedTest", "modelled_launcher", python, paths, reuse=reuse)
                for reuse in (False, True)]  # fmt: skip
    if not (tests / "unit" / "common.py").is_file():
        raise SystemExit(f"{tests} has no unit/common.py. Give the folder tests of a checkout of DeepSpeed.")
    return [_deepspeed(arguments, "DistributedTest", "unit.common", python, (*paths, tests.absolute()), reuse=reuse)
            for reuse in (False, True)]  # fmt: skip


def _deepspeed(
    arguments: argparse.Namespace, name: str, module: str, python: str, paths: tuple[Path, ...], *, reuse: bool
) -> Launcher:
    return Launcher(
        f"DeepSpeed 0.19.8, {name}{', reuse_dist_env' if reuse else ''}",
        _DEEPSPEED,
        arguments.deepspeed_cases * (2 if reuse else 1),
        python=python,
        conftest=_DEEPSPEED_CONFTEST,
        fields=(("reuse", reuse), ("module", module)),
        paths=(*paths, PLUGINS),
        goal="≥ 80×" if reuse else "≥ 300×",
    )


def install(work: Path) -> Path:
    """Return a folder with DeepSpeed but without torch, so that both sides use the same torch; install once."""
    folder = work / DEEPSPEED.replace("==", "-")
    if (folder / "deepspeed" / "__init__.py").exists():
        return folder
    put = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder)]
    environment = {**os.environ, "DS_BUILD_OPS": "0", "PYTHONPATH": str(folder)}
    for what in ((*_TO_BUILD, *_TO_IMPORT), ("--no-deps", "--no-build-isolation", DEEPSPEED)):
        if subprocess.run([*put, *what], env=environment, check=False).returncode:
            raise SystemExit(
                f"{what[-1]} cannot be installed; pip says why above. Leave out --deepspeed or give --deepspeed-python."
            )
    return folder
