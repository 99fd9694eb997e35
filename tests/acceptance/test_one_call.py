"""``--case 'ID{form=out,…}'`` makes single calls of an operator, and a failure names the call that failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conformance.reports.calls import CALL, SCRIPT
from conformance.reports.verdict import Outcome, Reason

from .running import DATABASE, run

CASE = "operators.add[float32-inference]"
#: An accelerator of the host that reads the storage of every tensor from its beginning.
DEFECT = """
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from conformance.accelerators.registry import resolve
from conformance.suites.operators.calls import execution

sound = execution.execute


def without_offset(leaf):
    if leaf.storage_offset() and not leaf.is_conj() and not leaf.is_neg():
        return leaf.as_strided(leaf.shape, leaf.stride(), 0)
    return leaf


def execute(function, sample, **extra):
    moved = torch.utils._pytree.tree_map_only(torch.Tensor, without_offset, sample.arguments)
    return sound(function, sample.with_arguments(moved), **extra)


execution.execute = execute
CPU = resolve("cpu").load()
"""


def test_selected_calls_alone_are_judged(tmp_path: Path) -> None:
    done = run(
        "--accelerator=cpu", "-n0", f"--case={CASE}{{form=out,arrangement=offset}}", cwd=tmp_path, imported=DATABASE
    )
    assert done.status == 0, done.output

    (case,) = done.report.cases

    assert case.outcome is Outcome.PASS
    assert 0 < int(case.metrics["comparisons"]) < 100


def test_a_selection_of_no_call_is_a_skip_with_a_sentence(tmp_path: Path) -> None:
    done = run("--accelerator=cpu", "-n0", f"--case={CASE}{{form=sideways}}", cwd=tmp_path, imported=DATABASE)

    (case,) = done.report.cases

    assert (case.outcome, case.reason) == (Outcome.SKIP, Reason.ENVIRONMENT)
    assert "no call of this case is {form=sideways}" in case.message


def test_the_repro_line_of_a_failure_makes_the_failed_call_alone(tmp_path: Path) -> None:
    (tmp_path / "defect.py").write_text(DEFECT)
    arguments = ("--accelerator=defect:CPU", "-n0")
    about: dict[str, Any] = {"name": "defect-CPU", "imported": DATABASE, "PYTHONPATH": str(tmp_path)}
    done = run(*arguments, f"--case={CASE}", cwd=tmp_path, **about)
    (case,) = done.report.cases
    call = str(case.metrics[CALL])

    assert "arrangement=gaps" in call
    assert case.repro.endswith(f"--case '{CASE}{call}' -n0")
    assert "def run(device):" in str(case.metrics[SCRIPT])

    again = run(*arguments, f"--case={CASE}{call}", cwd=tmp_path, **about)

    (repeated,) = again.report.cases
    assert repeated.message == case.message
    assert int(repeated.metrics.get("comparisons", 1)) < 10


@pytest.mark.long
def test_a_case_file_may_select_calls(tmp_path: Path) -> None:
    (tmp_path / "calls.txt").write_text(f"{CASE}{{form=in-place}}\n")

    done = run("--accelerator=cpu", "-n0", "--case-file=calls.txt", cwd=tmp_path, imported=DATABASE)

    assert done.status == 0, done.output
    assert len(done.report.cases) == 1
