"""A correct backend in Python, written without a look at the suite's cases, is never accused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.running import DATABASE, run
from tests.layers import longer

HERE = Path(__file__).parent
#: Seconds.
_LONGEST = 3600.0
#: Parts of the operators and models in float32: all take minutes: ``tox run -e instrument -- strangers heron``.
SELECTIONS = {
    "few operators": ["--area", "operators", "--dtype", "float32", "--shard", "3/200"],
    "interface": ["--area", "accelerator", "--area", "capabilities"],
    "operators": ["--area", "operators", "--dtype", "float32", "--shard", "3/20"],
    "models": ["--area", "workloads", "--dtype", "float32", "--shard", "2/4"],
}


def failures(selection: list[str], folder: Path, workers: str = "-n1", **environment: str) -> dict[str, str]:
    """Run cases on heron; return the message of each failure, by id."""
    words = ("--accelerator=heron_accelerator:HERON", f"--conformance-report={folder}", "-q", workers, *selection)
    done = run(*words, cwd=folder, timeout=_LONGEST, imported=DATABASE, PYTHONPATH=str(HERE), **environment)
    report = folder / "heron" / "report.json"
    assert report.exists(), done.output
    cases = json.loads(report.read_text())["cases"]
    assert sum(case.get("outcome", "pass") == "pass" for case in cases) > 3, done.output
    return {case["id"]: case["message"] for case in cases if case.get("outcome") == "fail"}


@pytest.mark.parametrize("selection", longer(SELECTIONS, "few operators"))
def test_a_correct_backend_is_not_accused(selection: str, tmp_path: Path) -> None:
    assert failures(SELECTIONS[selection], tmp_path, "-n0" if selection == "few operators" else "-n1") == {}


@pytest.mark.long
def test_storages_without_an_address_are_no_fault_of_an_operator(tmp_path: Path) -> None:
    assert failures(SELECTIONS["operators"], tmp_path, TORCH_HERON_OPAQUE="1") == {}


_BACKWARD_RAISES = """
import torch, torch_heron
from torch_heron import dispatch

real = dispatch.call


def call(func, *args, **kwargs):
    if "tanh_backward" in str(func):
        raise NotImplementedError("no kernel")
    return real(func, *args, **kwargs)


dispatch.call = call
x = torch.rand(4, 3).to("heron").requires_grad_()
try:
    torch.tanh(x).sum().backward()
except NotImplementedError:
    print("the exception arrived")
"""


@pytest.mark.xfail(
    strict=True,
    reason="PyTorch 2.13: PythonDeviceGuard::exchangeStream calls Python while the exception of a kernel is set, so "
    "that the exception is lost (SystemError) or the process aborts (std::terminate in a destructor)",
)
def test_an_exception_of_a_kernel_in_backward_arrives() -> None:
    """A crash of a Python backend in backward may be an exception that PyTorch did not deliver."""
    done = subprocess.run(
        [sys.executable, "-c", _BACKWARD_RAISES],
        env={**os.environ, "PYTHONPATH": str(HERE)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "the exception arrived" in done.stdout, done.stderr
