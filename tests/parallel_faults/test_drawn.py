"""Drawn faults of engines are red in the exact training, and the message names their place."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from tests.layers import longer
from tests.parallel_faults.drawn import Row, is_placed, score
from tests.parallel_faults.seams import SEAMS, Drawn, _lost, draws

FAULT = Drawn(0, "ddp's bucket", "bent", _lost, (1,), 1)
TRUTHS = [{"step": 2, "places": ["second.weight[4, 6]", "second.weight[4, 7]"], "rank": 1}]
SAID = "AssertionError: ddp: bent, rank {rank}, step {step}: the gradient of {name} is 0.0, exact 1.0 (1 of 9 elements"


def test_the_place_is_right_only_with_step_rank_and_element() -> None:
    right = SAID.format(rank=1, step=2, name="second.weight[4, 7]")

    assert is_placed(FAULT, right, TRUTHS)
    assert not is_placed(FAULT, SAID.format(rank=0, step=2, name="second.weight[4, 7]"), TRUTHS)
    assert not is_placed(FAULT, SAID.format(rank=1, step=1, name="second.weight[4, 7]"), TRUTHS)
    assert not is_placed(FAULT, SAID.format(rank=1, step=2, name="second.weight[4, 5]"), TRUTHS)
    assert not is_placed(FAULT, "AssertionError: nothing was compared", TRUTHS)


def test_the_earliest_of_two_changes_is_the_place() -> None:
    fault = Drawn(0, "a pipeline's gradients", "1f1b", _lost, (0, 1), 8)
    truths = [{"step": 2, "places": [""], "rank": 0}, {"step": 1, "places": [""], "rank": 1}]

    assert is_placed(fault, SAID.format(rank=0, step=1, name="first.weight[0, 0]"), truths)
    assert not is_placed(fault, SAID.format(rank=0, step=2, name="first.weight[0, 0]"), truths)


def test_the_score_counts_survivors_and_leaves_out_what_changed_no_bit() -> None:
    right = SAID.format(rank=1, step=2, name="second.weight[4, 7]")
    rows = [Row(FAULT, right, TRUTHS, "passed"), Row(FAULT, "passed", TRUTHS), Row(FAULT, "passed", [])]

    assert [row.state for row in rows] == ["placed", "SURVIVES", "void"]
    assert score(rows) == (
        "planted 2, and 1 that changed no bit; red in exact 1, with the right place 1; red in the tolerant case of the "
        "same engine 0 of 1"
    )


def test_every_seam_is_drawn_and_a_seed_draws_the_same() -> None:
    found = list(itertools.islice(draws("a"), len(SEAMS)))

    assert {fault.seam for fault in found} == set(SEAMS)
    assert found == list(itertools.islice(draws("a"), len(SEAMS)))
    assert found != list(itertools.islice(draws("b"), len(SEAMS)))


@pytest.mark.parametrize(("seed", "count"), longer([("first", 3), ("second", 30)], ("first", 3)))
def test_drawn_faults_are_found_with_their_place(seed: str, count: int) -> None:
    finished = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.parallel_faults.drawn", "--seed", seed, "--count", str(count)],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip

    assert finished.returncode == 0, finished.stdout + finished.stderr[-2000:]
    assert f"planted {count}," in finished.stdout
