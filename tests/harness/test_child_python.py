"""Tests of child interpreters: they import the same package in every folder, and say how their pytest died."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import conformance
from conformance.process.python import child_python, death_of_pytest, last_written, module_path

PROGRAM = "import sys, conformance.base.errors; print(conformance.__file__, *sys.argv[1:])"


def test_a_namesake_hides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "conformance").mkdir()
    (tmp_path / "conformance" / "__init__.py").write_text("raise ImportError('the wrong package')\n")
    (tmp_path / "beside.py").write_text("")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    command = child_python(f"import beside\n{PROGRAM}", "one", "two words")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.stdout.split(maxsplit=1) == [conformance.__file__, "one two words\n"], done.stderr
    assert sorted(module_path()) == sorted(sys.path)
    assert module_path().index(str(tmp_path)) > module_path().index(str(Path(pytest.__file__).parents[1]))


@pytest.mark.parametrize(
    ("status", "output", "death"),
    [
        (4, "a line\nERROR: no driver\n  do x\n", "no driver\n  do x"),
        (1, "Traceback\n\nboom\n\n", "probing sim ended with status 1: boom\n  to find"),
        (-9, "", "probing sim ended with status -9: it printed nothing\n  to find"),
    ],
)
def test_a_pytest_without_a_new_report_died_whatever_its_status(
    status: int, output: str, death: str, tmp_path: Path
) -> None:
    earlier = tmp_path / "report.json"
    earlier.write_text("{}")

    told = death_of_pytest(
        status, output, tmp_path, run="probing sim", accelerator="sim", written_before=last_written(tmp_path)
    )

    assert told.startswith(death)


@pytest.mark.parametrize(("status", "completed"), [(0, True), (1, True), (5, True), (2, False), (-9, False)])
def test_a_pytest_with_a_new_report_is_judged_by_its_status(status: int, completed: bool, tmp_path: Path) -> None:
    assert death_of_pytest(status, "", tmp_path, run="a run", accelerator="sim")
    (tmp_path / "report.json").write_text("{}")

    assert (death_of_pytest(status, "", tmp_path, run="a run", accelerator="sim") == "") == completed
