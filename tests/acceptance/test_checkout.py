"""A checkout: every way of starting works in it, and an installation leaves nothing in it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from conformance.base.errors import UsageError
from conformance.plan.bundled import suite_version

from .running import environment, run

ROOT = Path(__file__).parents[2]
ROOMS = ("accelerators", "conformance", "kernels", "reports")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the checkout without tests. Another copy of the package is installed."""
    for room in ROOMS:
        shutil.copytree(ROOT / room, tmp_path / room, ignore=shutil.ignore_patterns("__pycache__", "published"))
    for file in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, tmp_path / file)
    return tmp_path


@pytest.mark.long
def test_python_m_pytest_uses_the_rooms_of_the_checkout(checkout: Path) -> None:
    started = run("--accelerator=cpu", "--area=v1", "-n1", "-p", "no:warnings", cwd=checkout)
    command = [
        sys.executable,
        "-c",
        "import conformance.accelerators as a, conformance.reports as r; print(a.__file__, r.__file__)",
    ]
    imported = subprocess.run(command, cwd=checkout, env=environment(), capture_output=True, text=True, check=False)

    assert started.status == 0, started.output
    assert imported.stdout.split() == [str(checkout / room / "__init__.py") for room in ("accelerators", "reports")]


def test_an_installation_leaves_nothing_in_the_checkout(
    checkout: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pytest.importorskip("setuptools", minversion="77")
    before = set(checkout.iterdir())
    out, temporary = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("temporary")

    done = subprocess.run(
        [sys.executable, "-c", f"import setuptools.build_meta as build; build.build_wheel({str(out)!r})"],
        cwd=checkout, env=environment(TMPDIR=str(temporary)), capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert [wheel.suffix for wheel in out.iterdir()] == [".whl"], done.stdout + done.stderr
    assert set(checkout.iterdir()) == before
    assert not list(temporary.iterdir())


def test_files_without_an_installation_name_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)

    with pytest.raises(UsageError, match="pip install -e"):
        suite_version()
