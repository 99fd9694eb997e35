"""With ``-n0`` nobody is left when a case ends the process: what it says all the same, and that debuggers have time."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.layers import longer

from .running import run, start

DEADLINE = 1.5
CASES = f"""
import ctypes, os, time
from conformance.plan.case import case

@case("vendor.sleeps", deadline={DEADLINE})
def test_sleeps():
    time.sleep(600)

@case("vendor.crashes")
def test_crashes():
    ctypes.string_at(0)

@case("vendor.kills")
def test_kills():
    os.kill(os.getpid(), 9)

@case("vendor.stops", deadline={DEADLINE})
def test_stops():
    breakpoint()

@case("vendor.fails", deadline={DEADLINE})
def test_fails():
    assert 1 == 2

@case("vendor.passes")
def test_passes():
    pass
"""
AGAIN = "Rerun with --resume -n1"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "test_vendor.py").write_text(CASES)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "number", "words"),
    [
        ("sleeps", signal.SIGALRM, ["· hang", "no end before the deadline", "in test_sleeps"]),
        ("crashes", signal.SIGSEGV, ["· crash", "Segmentation fault", "in test_crashes"]),
        ("kills", signal.SIGKILL, ["· crash", "the process ended"]),
    ],
)
def test_a_case_that_ends_the_process_is_named(folder: Path, name: str, number: int, words: list[str]) -> None:
    finished = run("--accelerator=cpu", "test_vendor.py", "-n0", f"--case=vendor.{name}", cwd=folder)

    assert finished.status == -number
    for one in (f"vendor.{name} has ended the run", *words, AGAIN):
        assert one in finished.output


def test_what_it_says_to_do_next_goes_on(folder: Path) -> None:
    words = ("--accelerator=cpu", "test_vendor.py", "--case=vendor.crashes", "--case=vendor.passes")
    told = run(*words, "-n0", cwd=folder).output

    finished = run(*words, "-n1", "--resume", cwd=folder)

    assert AGAIN in told
    assert finished.verdicts == {"vendor.crashes": ("fail", "crash"), "vendor.passes": ("pass", "native")}


def test_a_process_that_dies_before_any_case_says_so(folder: Path) -> None:
    (folder / "conftest.py").write_text("import os\ndef pytest_collection_finish():\n    os.kill(os.getpid(), 11)\n")

    finished = run("--accelerator=cpu", "test_vendor.py", "-n0", "--case=vendor.passes", cwd=folder)

    assert "no case was running" in finished.output
    assert "in pytest_collection_finish" in finished.output


def test_a_run_that_ends_as_it_should_has_none(folder: Path) -> None:
    finished = run("--accelerator=cpu", "test_vendor.py", "-n0", "--case=vendor.passes", cwd=folder)

    assert finished.status == 0
    assert AGAIN not in finished.output


@pytest.mark.parametrize(
    ("name", "words", "status"), longer([("stops", [], 0), ("fails", ["--pdb"], 1)]), ids=["breakpoint", "pdb"]
)
def test_a_debugger_has_no_deadline(folder: Path, name: str, words: list[str], status: int) -> None:
    shell = ["sh", "-c", f'(sleep {4 * DEADLINE}; echo c; echo c) | "$@"', "sh"]

    process = start("--accelerator=cpu", "test_vendor.py", "-n0", f"--case=vendor.{name}", *words, cwd=folder, of=shell)
    output, _ = process.communicate(timeout=120)

    assert "(Pdb)" in output
    assert AGAIN not in output
    assert process.returncode == status, output
