"""Blame on a device whose tensors are a class in Python: its own class is the device, and not what hides it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]
_PROGRAM = """
import json, sys, torch
from torch import nn
from torch.nn import functional as F
import torch_heron
from torch_heron import dispatch
from conformance.accelerators.registry import resolve
from conformance.blame.program import Program
from conformance.blame.runs import LocalRuns
from conformance.blame.verdict import blame
from tests.blame.programs import trained

computed = dispatch._computed


def wrong(func, name, args, kwargs):
    result = computed(func, name, args, kwargs)
    if name == fault:
        first = result if isinstance(result, torch.Tensor) else result[0]
        first._held.mul_(1.01)
    return result


def classifier(device):
    model = nn.Sequential(nn.Linear(6, 8), nn.SiLU(), nn.LayerNorm(8), nn.Linear(8, 4))
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(2)).to(device)
    labels = torch.tensor([0, 1, 2, 3, 0]).to(device)
    return trained(model, device, lambda m: F.cross_entropy(m(x), labels), steps=2)


dispatch._computed = wrong
device = torch.device(resolve("heron_accelerator:HERON").load().current_device_name())
answers = {}
for fault in sys.argv[1:]:
    found = blame(LocalRuns(Program("classifier", classifier), device))
    answers[fault] = {
        "answer": found.answer.name, "steps": found.steps, "judged": found.judged,
        "culprits": [one.name for one in found.culprits], "explained": found.explained,
    }
print(json.dumps(answers))
"""
FAULTS = ("silu", "mm", "native_layer_norm_backward", "addcdiv_")


@pytest.fixture(scope="module", params=["0", "1"], ids=["storages", "no-addresses"])
def answers(request: pytest.FixtureRequest) -> Any:
    """Return what blame says of a backend in Python: a right one, and with a fault in one operator.

    Its storages have an address, or none, as those whose memory is in another process.
    """
    path = os.pathsep.join([str(TESTS / "strangers"), str(TESTS.parent), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, "TORCH_HERON_OPAQUE": request.param}
    words = [sys.executable, "-c", _PROGRAM, "none", *FAULTS]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_every_call_of_a_right_device_is_judged(answers: Any) -> None:
    found = answers["none"]

    assert found["answer"] in ("RIGHT", "ROUNDING")
    assert found["steps"] > 80
    assert found["judged"] > 0.9 * found["steps"]


@pytest.mark.parametrize("fault", FAULTS)
def test_the_culprit_is_first(fault: str, answers: Any) -> None:
    found = answers[fault]

    assert found["answer"] == "CULPRIT"
    assert found["culprits"][0].split(".")[1] == fault
    assert found["explained"] > 0.9
