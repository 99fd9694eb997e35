"""The benchmarks whose inputs are made by hand: the product must still accept them."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from benchmarks import gate, run_all


def test_the_gate_accepts_the_report_that_it_is_timed_with(tmp_path: Path) -> None:
    gate.write(tmp_path)
    gate.judge(tmp_path)
    gate.judge(tmp_path, f"--baseline={tmp_path / 'baseline.json'}")


@pytest.mark.parametrize("text", ["7/6", "0/2", "1", "x/2"])
def test_a_part_that_does_not_exist_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"expected K/N with 1 ≤ K ≤ N, such as 1/6, not "):
        run_all.part_of(text)
