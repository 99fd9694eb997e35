"""A run is continued on the stack on which it was begun, and its report names that stack."""

from __future__ import annotations

from pathlib import Path

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
