"""Every exact case that the suite collects passes with more threads and in another order, and sees one wrong bit."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.exact.every_case import exact_cases
from tests.layers import longer

ROOT = Path(__file__).parents[2]
#: Cases of the first layer: one process, and a sum over four ranks. The others are long.
FIRST = ("workloads.exact.eager*", "workloads.exact.context[gather-4]")
#: What a failed case says first.
PLACE = r"AssertionError: .*step 1: the (loss|gradient of [\w.]+\[[\d, ]+\]) is "
#: All cases, or those of the first layer.
PATTERNS = longer([FIRST, ("workloads.exact.*",)], FIRST)


def ended(patterns: tuple[str, ...], how: str, accelerator: str = "cpu") -> dict[str, dict[str, Any]]:
    """Return how the cases that match ended under a condition, by their ids."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.exact.every_case", *patterns,
         "--how", how, "--accelerator", accelerator],
        cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    found = {row["case"]: row for row in rows}
    wanted = {planned.case.id for pattern in patterns for planned in exact_cases(pattern, accelerator)}
    assert found.keys() == wanted
    return found


def not_passed(found: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Return what was said in cases that did not pass."""
    return {case: row["said"] for case, row in found.items() if row["said"] != "passed"}


@pytest.mark.parametrize("patterns", PATTERNS, ids=str)
@pytest.mark.parametrize("how", ["threads", "order"])
def test_no_exact_case_depends_on(how: str, patterns: tuple[str, ...]) -> None:
    found = ended(patterns, how)

    assert not_passed(found) == {}
    if how == "order":
        assert [case for case, row in found.items() if not row["changed"]] == []


@pytest.mark.parametrize("patterns", PATTERNS, ids=str)
def test_a_last_bit_of_every_sum_is_red_in(patterns: tuple[str, ...]) -> None:
    found = ended(patterns, "wrong")

    assert {case: row["said"] for case, row in found.items() if not re.match(PLACE, row["said"])} == {}


@pytest.mark.long
@pytest.mark.parametrize("how", ["threads", "order"])
def test_no_exact_case_of_the_simulated_device_depends_on(how: str) -> None:
    assert not_passed(ended(("workloads.exact.*",), how, "sim")) == {}


def test_the_first_layer_has_a_case_of_each_kind() -> None:
    chosen = [planned.case for pattern in FIRST for planned in exact_cases(pattern)]

    assert {case.world_size for case in chosen} == {None, 4}


#: Sums of numbers that are not exact, before and after the host's kernels are replaced.
_SUMS = """
import torch
from tests.exact import other_kernels
torch.manual_seed(0)
a, b, image, kernel = torch.randn(50, 700), torch.randn(700, 50), torch.randn(2, 64, 9, 9), torch.randn(8, 64, 3, 3)
sums = lambda: [a @ b, a.sum(), a.sum(1), a.mean(0), torch.conv2d(image, kernel), a[:, :50] @ b[:50]]
before = sums()
other_kernels.install()
after = sums()
print([not torch.equal(x, y) and torch.allclose(x, y, rtol=1e-3, atol=1e-4) for x, y in zip(before, after)])
"""


def test_the_other_order_is_another_order() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _SUMS],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip

    assert json.loads(done.stdout.lower()).count(True) >= 5, done.stdout
