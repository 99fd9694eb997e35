"""Tests of every failure on ranks: one verdict with all ranks' evidence, then a case that passes, and no leftovers."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.acceptance.running import Run, run
from tests.harness.ranks import torture_cases
from tests.harness.ranks.chaos import marked
from tests.harness.ranks.expectations import EXPECTED, missing_texts, overdue, verdicts

HERE = Path(__file__).parent
#: Seconds that a busy machine may add. Without the pool's own findings each would take its deadline of 60 s or more:
#: this tells both apart, and how soon a verdict comes on a quiet machine is measured by the instrument.
BUSY = 45.0


@pytest.fixture(scope="module", params=[pytest.param("-n2", marks=pytest.mark.long)])
def torture(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return tortured(tmp_path_factory.mktemp("torture"), "-n2")  # all other words: tox run -e instrument -- torture


def tortured(folder: Path, *arguments: str) -> Run:
    tests = shutil.copy(HERE / "torture_cases.py", folder / "test_torture_cases.py")
    return run(
        "--accelerator=cpu",
        "--tb=short",
        str(tests),
        *arguments,
        cwd=folder,
        timeout=1500,
        MARK_OF_THIS_RUN=str(folder),
    )


def test_every_body_is_expected_somewhere() -> None:
    assert set(EXPECTED) == {body.__name__ for body in torture_cases.BODIES}


def test_every_case_has_one_verdict_and_the_next_one_passes(torture: Run) -> None:
    assert torture.verdicts == verdicts(), torture.output
    assert torture.status == 1


def test_messages_tell_who_and_where(torture: Run) -> None:
    assert missing_texts(torture) == []


def test_nobody_waits_for_a_deadline_that_is_decided(torture: Run) -> None:
    assert set(overdue(torture, BUSY, processes=2)) <= {"kills_the_fork_server"}


@pytest.mark.parametrize(
    "text",
    [
        '[rank 1]   File "',  # tagged tracebacks and stacks
        "in loops_with_the_gil",
        "in sleeps",
        "in segfaults",
        "only rank 1 minds",
        f"of {torture_cases.LINES} lines",
        "[rank 1] line 0 of rank 1",
        f"[rank 1] line {torture_cases.LINES - 1} of rank 1",
        "assert 0 == 7",
    ],
)
def test_the_report_shows(torture: Run, text: str) -> None:
    assert text in torture.output


def test_output_is_capped(torture: Run) -> None:
    assert len(torture.output) < 2_000_000


@pytest.mark.parametrize(
    ("name", "leaked"),
    [
        ("changes_the_default_dtype", {"default_dtype"}),
        ("leaks_all_it_can", {"environment", "folder", "module_path", "excepthook", "SIGTERM", "warning_filters",
                              "default_device", "grad_enabled"}),
        ("leaves_a_thread", {"threads"}),
    ],
)  # fmt: skip
def test_leaks_are_named(torture: Run, name: str, leaked: set[str]) -> None:
    metrics = {case.id: dict(case.metrics) for case in torture.report.cases}[f"torture.{name}"]

    assert set(str(metrics.get("leaked", "")).split(",")) == leaked


def test_nothing_is_left(torture: Run) -> None:
    assert leftovers(str(torture.folder.parent.parent)) == []
    assert [name for name in os.listdir("/dev/shm") if name.startswith("torture-")] == []


def leftovers(mark: str) -> list[str]:
    """Return the command lines of processes that the run in that folder started, directly or indirectly."""
    return list(marked(mark).values())


def test_leftovers_would_be_seen(tmp_path: Path) -> None:
    environment = {**os.environ, "MARK_OF_THIS_RUN": str(tmp_path)}
    command = ["sh", "-c", "echo ready; read end"]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # /proc shows no environment until the new program runs
        found = leftovers(str(tmp_path))
        process.kill()

    assert found == [" ".join(command) + " "]
