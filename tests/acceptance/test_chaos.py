"""Crashes, hangs and kills: every planned id keeps exactly one verdict."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.layers import longer
from tests.waiting import wait_for

from .running import HERE, Run, kill, run, start

DEADLINE = 2.0
#: ``tox run -e instrument -- chaos`` has more.
KILLS = int(os.environ.get("CONFORMANCE_KILLS", "6"))


@pytest.fixture(scope="module", params=longer(["-n1", "-n2"], "-n2"))
def chaos(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("chaos")
    tests = shutil.copy(HERE / "chaos_cases.py", folder / "test_chaos_cases.py")
    return run("--accelerator=cpu", str(tests), request.param, cwd=folder)


EXPECTED = {
    "chaos.segfault": ("fail", "crash"),
    "chaos.exit_zero": ("fail", "crash"),
    "chaos.sigkill": ("fail", "crash"),
    "chaos.hang_holding_the_gil": ("fail", "hang"),
    "chaos.system_exit": ("fail", "raised"),
    "chaos.raises": ("fail", "raised"),
    "chaos.wrong": ("fail", "wrong"),
    **{f"chaos.{when}[{n}]": ("pass", "native") for when in ("before", "after") for n in range(12)},
}


def test_every_case_has_its_own_verdict(chaos: Run) -> None:
    assert chaos.verdicts == EXPECTED, chaos.output
    assert chaos.status == 1


def test_nothing_ran_twice_and_nothing_is_unaccounted(chaos: Run) -> None:
    ends = Counter(line["id"] for line in journal(chaos.folder) if line["kind"] == "end")

    assert set(ends) == set(EXPECTED)
    assert set(ends.values()) == {1}


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("chaos.segfault", "test_segfault"),  # the Python line that crashed
        ("chaos.segfault", "SIGSEGV"),
        ("chaos.sigkill", "SIGKILL"),
        ("chaos.exit_zero", "exit status 0"),
        ("chaos.hang_holding_the_gil", "test_hang_holding_the_gil"),
    ],
)
def test_the_report_says_how_a_process_died(chaos: Run, case: str, text: str) -> None:
    assert text in chaos.messages[case]


def test_a_hang_is_known_by_its_own_deadline(chaos: Run) -> None:
    records = journal(chaos.folder)
    began = next(r["t"] for r in records if r["kind"] == "start" and r["id"] == "chaos.hang_holding_the_gil")
    ended = next(r["t"] for r in records if r["kind"] == "end" and r["id"] == "chaos.hang_holding_the_gil")

    # On a busy machine it is known later; without a deadline of its own, after 60 s.
    assert DEADLINE <= ended - began < 45


def test_the_report_folder_holds_nothing_but_the_report(chaos: Run) -> None:
    names = {path.name for path in chaos.folder.iterdir()}

    assert names == {"journal.jsonl", "manifest.json", "report.json", "junit.xml", "matrix.md", "stacks", "failed.txt"}


def test_a_failure_prints_its_repro_line(chaos: Run) -> None:
    assert "repro: pytest" in chaos.output
    assert "--case chaos.wrong -n0" in chaos.output


@pytest.mark.long
def test_a_run_killed_at_random_points_resumes_to_the_same_report(tmp_path: Path) -> None:
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    for folder in (undisturbed, disturbed):
        folder.mkdir()
        shutil.copy(HERE / "slow_cases.py", folder / "test_slow_cases.py")
    whole = run("--accelerator=cpu", "test_slow_cases.py", "-n2", cwd=undisturbed, CHAOS_LOG=str(undisturbed / "log"))
    dice = random.Random(7)

    for attempt in range(KILLS):
        resume = ["--resume"] if (disturbed / "conformance-report/cpu/manifest.json").exists() else []
        process = start(
            "--accelerator=cpu", "test_slow_cases.py", "-n2", *resume, cwd=disturbed, CHAOS_LOG=str(disturbed / "log")
        )
        wait_until_it_works(process, disturbed, dice.uniform(0, 0.6))
        kill(process, whole_group=bool(attempt % 2))
    last = run(
        "--accelerator=cpu", "test_slow_cases.py", "-n2", "--resume", cwd=disturbed, CHAOS_LOG=str(disturbed / "log")
    )

    assert without_times(last) == without_times(whole), last.output
    assert_nothing_was_rerun(journal(last.folder))


def wait_until_it_works(process: subprocess.Popen[str], folder: Path, moment: float) -> None:
    """Let a run come as far as its first new journal line, then some more: kills before that test nothing."""
    path = folder / "conformance-report/cpu/journal.jsonl"
    size = path.stat().st_size if path.exists() else 0
    wait_for(
        "the journal has another line, or the run has ended",
        lambda: process.poll() is not None or (path.exists() and path.stat().st_size > size),
    )
    time.sleep(moment)  # any moment will do: the kill is random


def without_times(finished: Run) -> list[object]:
    return [replace(case, seconds=0.0) for case in finished.report.cases]


def assert_nothing_was_rerun(records: list[dict[str, object]]) -> None:
    ended: set[object] = set()
    for record in records:
        if record["kind"] == "start":
            assert record["id"] not in ended, f"{record['id']} ran again after it had a verdict"
        if record["kind"] == "end":
            assert record["id"] not in ended, f"{record['id']} has two verdicts"
            ended.add(record["id"])


def journal(folder: Path) -> list[dict[str, object]]:
    lines = (folder / "journal.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]


@pytest.mark.long
def test_workers_that_die_together_lose_nothing(tmp_path: Path) -> None:
    shutil.copy(HERE / "twin_cases.py", tmp_path / "test_twin_cases.py")

    finished = run("--accelerator=cpu", "test_twin_cases.py", "-n2", cwd=tmp_path)

    assert "INTERNALERROR" not in finished.output, finished.output
    assert finished.verdicts == {f"twin.dies[{n}]": ("fail", "crash") for n in range(12)}, finished.output
