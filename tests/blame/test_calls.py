"""Calls at their real sizes: recorded without memory, and judged by samples that size mutants cannot hide from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from conformance.accelerators.registry import resolve
from conformance.blame import calls
from conformance.cli.main import main
from conformance.suites.calls.judging import on_device
from conformance.suites.calls.spec import Spec, function_of, made
from tests.faults.overriding import after, overridden
from tests.layers import longer


@pytest.fixture(scope="module")
def device() -> torch.device:
    return torch.device(resolve("sim").load().current_device_name())


def block(device: torch.device) -> Any:
    """Run a wide block forward and backward: embedding, normalisation, product, activation, attention, loss."""
    model = nn.Sequential(nn.Embedding(5000, 64), nn.LayerNorm(64), nn.Linear(64, 200), nn.SiLU(), nn.Linear(200, 64))
    x = model.to(device)(torch.zeros(2, 700, dtype=torch.int64, device=device))
    heads = x.view(2, 700, 4, 16).transpose(1, 2)
    scores = torch.matmul(heads, heads.transpose(-1, -2)).softmax(-1)
    out = torch.matmul(scores, heads)
    out.float().square().sum().backward()
    return out


#: What shows only at size: the kernel, and what it does to its result.
MUTANTS: dict[str, tuple[str, Callable[[torch.Tensor], Any]]] = {
    "elements beyond 2^18": ("aten::silu.out", lambda t: t.view(-1)[1 << 18 :].zero_()),
    "the last partial tile": ("aten::silu.out", lambda t: t.view(-1)[t.numel() // 4096 * 4096 :].zero_()),
    "rows beyond 2^10": ("aten::native_layer_norm", lambda t: t.view(-1, t.shape[-1])[1024:].mul_(2)),
    "the last row of a product": ("aten::mm.out", lambda t: t[-1].add_(1) if t.shape[0] > 256 else t),
    "a product of many rows": ("aten::addmm.out", lambda t: t[1024:].mul_(1.1)),
    "rows of a softmax": ("aten::_softmax.out", lambda t: t.view(-1, t.shape[-1])[1 << 12 :].mul_(0.5)),
    "batches from the 6th on": ("aten::bmm.out", lambda t: t[6:].mul_(1.1)),
    "the last row of a batch": ("aten::bmm.out", lambda t: t[:, 512:].add_(1) if t.shape[1] > 512 else t),
}


@pytest.fixture(scope="module")
def specs() -> list[Spec]:
    return calls.recorded(block)


def wrong(specs: list[Spec], device: torch.device) -> set[str]:
    judged = [(spec, on_device(spec, device, number)) for number, spec in enumerate(specs)]
    return {spec.function for spec, found in judged if found.wrong}


def test_recording_needs_no_memory_and_counts_equal_calls() -> None:
    def layers(device: torch.device) -> Any:
        x = torch.empty(1 << 20, 1 << 14, device=device, dtype=torch.bfloat16)  # 32 GiB
        for _ in range(5):
            x = F.gelu(x)
        return x

    found = {spec.function: spec for spec in calls.recorded(layers)}

    assert found["aten.gelu.default"].count == 5
    assert found["aten.gelu.default"].elements == 1 << 34


def test_a_healthy_device_is_right(specs: list[Spec], device: torch.device) -> None:
    assert len(specs) > 30
    assert not wrong(specs, device)


@pytest.mark.parametrize("name", longer(MUTANTS, "the last partial tile", "the last row of a batch"))
def test_what_shows_only_at_size_is_found(specs: list[Spec], device: torch.device, name: str) -> None:
    kernel, change = MUTANTS[name]
    with overridden({kernel: after(change)}, "PrivateUse1"):
        found = wrong(specs, device)

    operator = kernel.partition("::")[2].partition(".")[0].removeprefix("_")
    assert any(operator in function for function in found), found


def test_strides_are_those_of_the_model(device: torch.device) -> None:
    def transposed(device: torch.device) -> Any:
        return F.relu(torch.empty(700, 300, device=device).t())

    (spec,) = [spec for spec in calls.recorded(transposed) if "relu" in spec.function]
    given = made(spec, function_of(spec), 0)

    assert given.args[0].stride() == (1, 300)


def test_positions_exist() -> None:
    (spec,) = [spec for spec in calls.recorded(block) if spec.function == "aten.embedding.default"]
    given = made(spec, function_of(spec), 0)

    assert int(given.args[1].max()) < 5000
    assert int(given.args[1].max()) > 4000


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "m.py").write_text(
        "import torch\ndef run(device):\n    return torch.ones(300, 300, device=device).relu() @ torch.ones(300, 2)\n"
        "def reads(device):\n    x = torch.ones(3, device=device)\n    return x * 2 if x.sum().item() > 1 else x\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_calls_are_written_and_judged(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "m.py:run", "-o", "calls.json"]) == 0
    assert main(["trace", "calls.json", "--accelerator", "cpu"]) == 0

    printed = capsys.readouterr().out
    assert "1 × aten.mm.default(float32[300, 300], float32[300, 2])" in printed
    assert "calls judged on cpu:0, 0 wrong, 0 not judged" in printed
    assert json.loads((file / "calls.json").read_text())["version"] == calls.VERSION


def test_shipped_calls_are_listed_and_judged(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "transformers:gpt2", "-o", "gpt2.json"]) == 0
    assert main(["trace", "transformers:gpt2", "--accelerator", "cpu", "--most-elements", "3000"]) == 0

    printed = capsys.readouterr().out
    assert "50257" in printed
    assert ", 0 wrong, " in printed
    assert len(calls.read(file / "gpt2.json")) > 100


WRONG = {
    "transformers:gpt22": "'gpt2'",
    "m.py:reads": "does not run on the meta device: ",
    "none.json": "there is no none.json. To write one: conformance trace",
    "other.json": "other.json has version 99; this suite reads 1",
    "text.json": "text.json has no calls: ",
}


@pytest.mark.parametrize("text", WRONG)
def test_bad_input_is_one_sentence(file: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    (file / "other.json").write_text('{"version": 99, "calls": []}')
    (file / "text.json").write_text("[]")

    assert main(["trace", text]) == 4
    assert WRONG[text] in capsys.readouterr().err


def test_a_call_that_is_too_large_is_told(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "m.py:run", "--accelerator", "cpu", "--most-elements", "1000"]) == 0

    assert "its tensors have 90,600 elements" in capsys.readouterr().out
