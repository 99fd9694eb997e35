"""Report folders: a folder in use is locked, and a narrowed run replaces no complete one."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from .running import Run, run, start
from .test_interrupts import FOREVER, wait_for

CASES = """
from conformance.case import case

@case("vendor.step", axes={"n": ["0", "1", "2"]})
def test_step(n):
    assert n != "2"
"""
WHOLE = ("--accelerator=cpu", "test_vendor.py", "-n0")
ONE = (*WHOLE, "--case=vendor.step[2]")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "test_vendor.py").write_text(CASES)
    return tmp_path


def test_a_narrowed_run_does_not_replace_a_complete_one(folder: Path) -> None:
    run(*WHOLE, cwd=folder)

    narrowed = run(*ONE, cwd=folder, name="cpu-selection")

    assert list(narrowed.verdicts) == ["vendor.step[2]"]
    assert len(Run(0, "", folder / "conformance-report/cpu").verdicts) == 3
    assert "the complete run in conformance-report/cpu is kept" in narrowed.output
    assert "report: conformance-report/cpu-selection" in narrowed.output


def test_a_complete_run_replaces_a_narrowed_one(folder: Path) -> None:
    run(*ONE, cwd=folder)

    second = run(*WHOLE, cwd=folder)

    assert len(second.verdicts) == 3


def test_a_narrowed_run_can_be_resumed_beside_a_complete_one(folder: Path) -> None:
    run(*WHOLE, cwd=folder)
    run(*ONE, cwd=folder)

    resumed = run(*ONE, "--resume", cwd=folder, name="cpu-selection")

    assert list(resumed.verdicts) == ["vendor.step[2]"]
    assert "0 cases to run" in resumed.output


@pytest.mark.parametrize("workers", ["-n0", "-n1"])
def test_a_folder_in_use_is_locked(workers: str, tmp_path: Path) -> None:
    (tmp_path / "test_vendor.py").write_text(FOREVER)
    words = ("--accelerator=cpu", "test_vendor.py", workers)
    process = start(*words, cwd=tmp_path)
    wait_for(tmp_path / "running", process)

    second = run(*words, cwd=tmp_path)
    elsewhere = run(*words, "--case=vendor.first", cwd=tmp_path, name="cpu-selection")
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    (tmp_path / "released").touch()
    resumed = run(*words, "--resume", cwd=tmp_path)

    assert second.status == 4, second.output
    assert "conformance-report/cpu is in use by another run" in second.output
    assert "--conformance-report DIR" in second.output
    assert "Traceback" not in second.output
    assert elsewhere.status == 0, elsewhere.output
    assert resumed.status == 0, resumed.output


def test_a_run_deletes_what_killed_runs_have_left(folder: Path) -> None:
    report = folder / "conformance-report/cpu"
    (report / "stacks").mkdir(parents=True)
    for name in ("manifest.0123.json", "facts.0123.json", "setup-error.0123.txt", "stacks/gw7.txt"):
        (report / name).write_text("{}")

    run(*WHOLE, cwd=folder)

    assert {path.name for path in report.iterdir()} == {
        "journal.jsonl", "manifest.json", "report.json", "junit.xml", "matrix.md", "stacks"
    }  # fmt: skip
    assert not list((report / "stacks").glob("gw*"))
