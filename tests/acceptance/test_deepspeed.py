"""DeepSpeed's own CPU accelerator as a subject: its known defects are verdicts, and nothing else fails."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from .running import run

DEFECTS = {
    "accelerator.device.current_under_launcher": "'1'; it must return an int",
    "accelerator.device.torch_device": "returned None; it must return a torch.device",
    "accelerator.device.out_of_range[far]": "did not raise",
    "accelerator.device.name_index": "is 'cpu'",
    "accelerator.rng.state_index": "takes 1 positional argument but 2 were given",
}


@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="needs the extra: pip install deepspeed")
def test_the_real_defects_of_deepspeeds_cpu_are_reported(tmp_path: Path) -> None:
    finished = run("--accelerator=deepspeed:cpu", "--area=accelerator", "-n1", cwd=tmp_path, name="deepspeed-cpu")

    assert finished.status == 1, finished.output
    for case, sentence in DEFECTS.items():
        assert finished.verdicts[case][0] == "fail", finished.output
        assert sentence in finished.messages[case]
    assert finished.verdicts["accelerator.rng.fork"] == ("pass", "native")


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("deepspeed", "transformers")),
    reason="needs the extras: pip install deepspeed transformers",
)
def test_the_engine_runs_on_an_accelerator_of_this_project(tmp_path: Path) -> None:
    ways = ("hooks[1]", "nvme[3]", "universal[1-1]", "auto_tp[2]", "gathered[2]", "one_bit[OneBitAdam]")
    chosen = [f"--case=workloads.deepspeed.{way}" for way in ways]
    finished = run("--accelerator=cpu", *chosen, "-n0", cwd=tmp_path, name="cpu")

    assert finished.status == 0, finished.output
    verdicts = {way: finished.verdicts[f"workloads.deepspeed.{way}"] for way in ways}
    assert verdicts.pop("one_bit[OneBitAdam]") == ("skip", "environment")
    assert set(verdicts.values()) == {("pass", "native")}, finished.output
