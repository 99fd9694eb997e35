"""Cases accuse neither an allocator with a policy of its own nor a machine whose packages are broken."""

from __future__ import annotations

import subprocess
import sys
import weakref
from importlib.machinery import PathFinder
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from conformance.judging.finding import EnvironmentLacks, Finding
from conformance.suites.accelerator import test_effects as effects
from conformance.suites.workloads import data
from tests.acceptance.running import Run, environment


class Block:
    """Memory of the allocator below."""

    def __init__(self, size: int) -> None:
        self.nbytes = size


class Allocator:
    """Caching allocator that keeps ``kept`` free blocks when its cache is emptied."""

    def __init__(self, kept: int) -> None:
        self._kept, self._used, self._free = kept, 0, []  # type: ignore[var-annotated]

    def zeros(self, size: int, **_: Any) -> Any:
        block = Block(size)
        self._used += size
        weakref.finalize(block, self._release, size)
        return block

    def _release(self, size: int) -> None:
        self._used -= size
        self._free.append(size)

    def synchronize(self) -> None: ...

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def memory_allocated(self) -> int:
        return self._used

    def memory_reserved(self) -> int:
        return self._used + sum(self._free)

    def empty_cache(self) -> None:
        self._free = sorted(self._free, reverse=True)[: self._kept]


def empty_cache(monkeypatch: pytest.MonkeyPatch, kept: int) -> None:
    allocator = Allocator(kept)
    monkeypatch.setattr(effects, "torch", SimpleNamespace(zeros=allocator.zeros, uint8=torch.uint8))
    effects.test_empty_cache(allocator, "acme")


@pytest.mark.parametrize("kept", [0, 1, 3])
def test_an_allocator_may_keep_a_few_blocks(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    empty_cache(monkeypatch, kept)


def test_an_allocator_that_keeps_everything_is_a_stub(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Finding, match="has no effect"):
        empty_cache(monkeypatch, kept=100)


@pytest.mark.parametrize(
    "line", ["raise ImportError('libgomp.so.1 is missing')", "raise ValueError('numpy.dtype size')"]
)
def test_a_broken_package_is_reported_with_its_own_error(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sklearn").mkdir()
    (tmp_path / "sklearn" / "__init__.py").write_text(line)
    for name in [name for name in sys.modules if name.partition(".")[0] == "sklearn"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(
        EnvironmentLacks, match=r"is installed, but does not load: (ImportError: lib|ValueError: numpy)"
    ):
        data.digits.__wrapped__()


def test_a_missing_package_is_reported_as_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "sklearn"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [finder for finder in sys.meta_path if finder is not PathFinder])

    with pytest.raises(EnvironmentLacks, match="not installed"):
        data.digits.__wrapped__()


def test_ranks_of_a_job_meet_where_the_name_of_the_host_has_no_address(tmp_path: Path) -> None:
    named = ["unshare", "--uts", "sh", "-c", 'hostname without-address && exec "$@"', "sh"]
    try:
        subprocess.run([*named, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no host with another name can be made here: {error}")
    pytest_on_it = [*named, sys.executable, "-m", "pytest", "--accelerator=cpu", "-n0", "--case", "comm.world*"]

    ended = subprocess.run(pytest_on_it, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=240)

    found = Run(ended.returncode, ended.stdout, tmp_path / "conformance-report" / "cpu")
    assert found.verdicts == {"comm.world[all]": ("pass", "native")}, found.output
