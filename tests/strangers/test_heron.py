"""A correct backend in Python, written without a look at the suite's cases, is never accused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
#: A tenth of the operators in float32: all of them take a minute, and ``tox run -e strangers`` runs them.
SELECTIONS = {
    "interface": ["--area", "accelerator", "--area", "capabilities"],
    "operators": ["--area", "operators", "--dtype", "float32", "--shard", "3/10"],
    "models": ["--area", "workloads", "--dtype", "float32"],
}


def failures(selection: list[str], folder: Path, **environment: str) -> dict[str, str]:
    """Run cases on heron; return the message of each failure, by id."""
    words = [sys.executable, "-m", "pytest", "-q", "-n1", "-p", "no:cacheprovider", *selection]
    done = subprocess.run(
        [*words, "--accelerator=heron_accelerator:HERON", f"--conformance-report={folder}"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(HERE), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    report = folder / "heron" / "report.json"
    assert report.exists(), done.stdout + done.stderr
    cases = json.loads(report.read_text())["cases"]
    assert sum(case.get("outcome", "pass") == "pass" for case in cases) > 3, done.stdout
    return {case["id"]: case["message"] for case in cases if case.get("outcome") == "fail"}


@pytest.mark.parametrize("selection", SELECTIONS.values(), ids=SELECTIONS)
def test_a_correct_backend_is_not_accused(selection: list[str], tmp_path: Path) -> None:
    assert failures(selection, tmp_path) == {}


def test_storages_without_an_address_are_no_fault_of_an_operator(tmp_path: Path) -> None:
    assert failures(SELECTIONS["operators"], tmp_path, TORCH_HERON_OPAQUE="1") == {}
