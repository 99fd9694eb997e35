"""The benchmarks whose inputs are made by hand: the product must still accept them."""

from __future__ import annotations

from pathlib import Path

from benchmarks import gate


def test_the_gate_accepts_the_report_that_it_is_timed_with(tmp_path: Path) -> None:
    gate.write(tmp_path)
    gate.judge(tmp_path)
    gate.judge(tmp_path, f"--baseline={tmp_path / 'baseline.json'}")
