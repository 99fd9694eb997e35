"""The first call of an operator may compile for long; one that never returns is a hang all the same."""

from __future__ import annotations

from pathlib import Path

from .running import run

CASES = """
import time
from conformance.accelerators.capabilities import Cell
from conformance.plan.case import case

NEEDS = [Cell("operators.add", "float32", "inference")]

@case("vendor.compiles", requires=NEEDS, deadline=1.0)
def test_compiles():
    time.sleep(2.5)

@case("vendor.hangs", requires=NEEDS, axes={"call": ["first", "second"]}, deadline=0.5)
def test_hangs(call):
    time.sleep(600)
"""


def test_a_first_call_may_take_long_and_a_hang_is_reported(tmp_path: Path) -> None:
    (tmp_path / "test_vendor.py").write_text(CASES)

    finished = run("--accelerator=cpu", "test_vendor.py", "-n1", cwd=tmp_path)

    assert finished.verdicts == {
        "vendor.compiles": ("pass", "native"),
        "vendor.hangs[first]": ("fail", "hang"),
        "vendor.hangs[second]": ("fail", "hang"),
    }, finished.output
