"""Each public name of ``torch.accelerator`` has cases, and each defect of one is red by a case that names it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.acceptance.running import environment
from tests.layers import longer

from .torch_accelerator_defects import MUTANTS

ROOT = Path(__file__).parents[2]


def test_each_public_name_has_a_defect_that_a_case_of_its_name_sees():
    names = {mutant.name.removeprefix("torch.accelerator.").partition(":")[0].partition(".")[0] for mutant in MUTANTS}

    assert names == set(torch.accelerator.__all__), "torch.accelerator has other names: add cases and defects"


@pytest.mark.parametrize("step", longer([27, 1], 27))
def test_each_defect_is_red(step: int, tmp_path: Path):
    # One process for all: it forks a copy for each defect, and a process with threads could not.
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    done = subprocess.run(
        [sys.executable, "-m", "tests.suites.torch_accelerator_defects", str(step)],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )

    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["defects"] >= len(MUTANTS) // step
    assert not found["alive"]
    assert not found["red when healthy"]
