"""A run is continued on the stack on which it was begun, and its report names that stack."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conformance.base.suite_files import suite_files_sha256

from .running import run

WORDS = ("--accelerator=cpu", "--case=accelerator.device.count", "-n0")


def test_a_run_is_not_continued_on_another_stack(tmp_path: Path) -> None:
    first = run(*WORDS, cwd=tmp_path, name="cpu")
    before = (tmp_path / "conformance-report" / "cpu" / "journal.jsonl").read_bytes()

    second = run(*WORDS, "--resume", cwd=tmp_path, name="cpu", OMP_NUM_THREADS="2")

    assert (first.status, second.status) == (0, 4)
    assert "begun on another stack: variable OMP_NUM_THREADS 1 and 2" in " ".join(second.output.split())
    assert (tmp_path / "conformance-report" / "cpu" / "journal.jsonl").read_bytes() == before
    assert first.report.run.suite.files_sha256 == suite_files_sha256()
    assert first.report.accelerator.torch_build
    assert any(plugin.startswith("pytest-xdist ") for plugin in first.report.environment.plugins)


@pytest.mark.parametrize("known", [(), ("run",)])
def test_a_run_that_was_stopped_before_it_knew_its_stack_is_continued(known: tuple[str, ...], tmp_path: Path) -> None:
    run(*WORDS, cwd=tmp_path, name="cpu")
    journal = tmp_path / "conformance-report" / "cpu" / "journal.jsonl"
    lines = [line for line in journal.read_text().splitlines() if json.loads(line)["kind"] in (*known, "finish")]
    journal.write_text("".join(f"{line}\n" for line in lines))

    second = run(*WORDS, "--resume", cwd=tmp_path, name="cpu")

    assert second.status == 0, second.output
    assert second.verdicts == {"accelerator.device.count": ("pass", "native")}
    assert second.report.accelerator.name == "cpu"
