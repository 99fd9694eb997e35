"""Report folders: a folder in use is locked, and a narrowed run replaces no complete one."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from conformance.cli.main import main
from conformance.reports.history import earlier_runs
from conformance.reports.loading import load
from tests.layers import longer

from .running import Run, run, start
from .test_interrupts import FOREVER, wait_for_file

CASES = """
from conformance.plan.case import case

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
    assert [len(load(kept).cases) for kept in earlier_runs(second.folder)] == [1]


def test_a_run_keeps_the_run_before(folder: Path) -> None:
    first = run(*WHOLE, cwd=folder)
    report, signature = first.report, "signed"
    (first.folder / "report.json.sig").write_text(signature)
    data = (first.folder / "report.json").read_bytes()

    run(*WHOLE, cwd=folder)
    third = run(*WHOLE, cwd=folder)

    kept = earlier_runs(third.folder)
    assert [load(path).run.id for path in kept][:1] == [report.run.id]
    assert len(kept) == 2
    assert len({load(path).run.id for path in (*kept, third.folder)}) == 3
    assert (kept[0] / "report.json").read_bytes() == data
    assert (kept[0] / "report.json.sig").read_text() == signature
    assert not (third.folder / "report.json.sig").exists()
    assert "conformance-report/cpu/earlier/" in third.output


def test_runs_of_one_second_are_kept_in_their_order(folder: Path) -> None:
    ids = [run(*ONE, cwd=folder).report.run.id for _ in range(4)]

    assert [load(path).run.id for path in earlier_runs(folder / "conformance-report/cpu")] == ids[:-1]


def test_the_last_run_is_compared_with_the_run_before(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = run(*WHOLE, cwd=folder)
    assert main(["diff", str(first.folder)]) == 4
    alone = capsys.readouterr().err
    (folder / "test_vendor.py").write_text(CASES.replace('n != "2"', 'n != "1"'))
    run(*WHOLE, cwd=folder)

    status = main(["diff", str(first.folder)])

    shown = capsys.readouterr().out.splitlines()
    assert "keeps no earlier run" in alone
    assert status == 1
    assert [line for line in shown if line.startswith(("worse", "better"))] == [
        "worse     vendor.step[1]: pass (native) → fail (wrong)",
        "better    vendor.step[2]: fail (wrong) → pass (native)",
    ]


def test_an_interrupted_run_is_kept_and_can_be_continued(tmp_path: Path) -> None:
    (tmp_path / "test_vendor.py").write_text(FOREVER)
    words = ("--accelerator=cpu", "test_vendor.py", "-n1")
    process = start(*words, cwd=tmp_path)
    wait_for_file(tmp_path / "running", process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    (tmp_path / "released").touch()
    whole = run(*words, cwd=tmp_path)
    (interrupted,) = earlier_runs(whole.folder)
    before = load(interrupted)

    continued = tmp_path / "again" / "cpu"
    continued.parent.mkdir()
    interrupted.rename(continued)
    resumed = run(*words, "--resume", "--conformance-report=again", cwd=tmp_path)

    assert [case.id for case in before.cases] == ["vendor.first"]
    assert resumed.status == 0, resumed.output
    assert load(continued).run.id == before.run.id
    assert not earlier_runs(continued), "a resumed run has no run before it"


def test_a_run_without_a_verdict_is_not_kept(folder: Path) -> None:
    run(*WHOLE, cwd=folder)
    (folder / "conformance-report/cpu/report.json").unlink()
    (folder / "conformance-report/cpu/journal.jsonl").write_text('{"kind":"run","schema":1}\n')

    second = run(*WHOLE, cwd=folder)

    assert not earlier_runs(second.folder)


def test_a_run_that_cannot_keep_the_run_before_changes_nothing(folder: Path) -> None:
    first = run(*WHOLE, cwd=folder)
    (first.folder / "earlier").write_text("a file where the folder has to be")

    second = run(*WHOLE, cwd=folder)

    assert second.status == 4, second.output
    assert "the run before cannot be kept" in second.output
    assert "Traceback" not in second.output
    assert load(first.folder).run.id == first.report.run.id == second.report.run.id


@pytest.mark.parametrize("workers", longer(["-n0", "-n2"]))
def test_of_runs_started_at_once_none_is_lost(workers: str, folder: Path) -> None:
    (folder / "test_vendor.py").write_text(CASES.replace("assert n", "import time; time.sleep(2); assert n"))
    words = ("--accelerator=cpu", "test_vendor.py", workers)

    processes = []
    for _ in range(3):
        processes.append(start(*words, cwd=folder))
        time.sleep(0.1)  # so that they do not all start in one moment; any order is right
    outputs = [process.communicate(timeout=240)[0] for process in processes]

    statuses = [process.returncode for process in processes]
    ended = [status for status in statuses if status != 4]
    report = folder / "conformance-report/cpu"
    assert set(statuses) <= {1, 4}, outputs
    assert ended, outputs
    assert all("in use by another run" in out for out, status in zip(outputs, statuses, strict=True) if status == 4)
    assert [len(load(path).cases) for path in (report, *earlier_runs(report))] == [3] * len(ended)


def test_a_narrowed_run_can_be_resumed_beside_a_complete_one(folder: Path) -> None:
    run(*WHOLE, cwd=folder)
    run(*ONE, cwd=folder)

    resumed = run(*ONE, "--resume", cwd=folder, name="cpu-selection")

    assert list(resumed.verdicts) == ["vendor.step[2]"]
    assert "0 cases to run" in resumed.output


@pytest.mark.parametrize("workers", longer(["-n0", "-n1"], "-n1"))
def test_a_folder_in_use_is_locked(workers: str, tmp_path: Path) -> None:
    (tmp_path / "test_vendor.py").write_text(FOREVER)
    words = ("--accelerator=cpu", "test_vendor.py", workers)
    process = start(*words, cwd=tmp_path)
    wait_for_file(tmp_path / "running", process)

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
        "journal.jsonl", "manifest.json", "report.json", "junit.xml", "matrix.md", "failed.txt", "stacks"
    }  # fmt: skip
    assert not list((report / "stacks").glob("gw*"))
