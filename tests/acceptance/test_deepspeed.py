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
