"""A workload case goes red for every planted fault, because a number is wrong, and is green without it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.layers import longer

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="needs the extra: pip install transformers"
)
@pytest.mark.timeout(1500)  # all 76 faults take more than the seven minutes that a busy machine had
@pytest.mark.parametrize(
    ("part", "fewest"),
    longer(
        [("ddp reduces no gradient", 2), ("exact: one gradient is lost in one bucket", 1), ("", 76)],
        ("exact: one gradient is lost in one bucket", 1),
    ),
)
def test_every_fault_is_found(part: str, fewest: int):
    finished = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.parallel_faults.run", part],
        cwd=ROOT, capture_output=True, text=True, timeout=1200, check=True,
    )  # fmt: skip
    found = json.loads(finished.stdout)

    assert set(found["sound"].values()) == {"passed"}, found["sound"]
    assert {name: text for name, text in found["faults"].items() if name not in found["killed"]} == {}
    assert len(found["killed"]) >= fewest
