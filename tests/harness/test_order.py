"""Order of cases: the dear ones first, so that no worker waits at the end of a run."""

from __future__ import annotations

import random
from collections.abc import Collection

import pytest

from conformance.plan.bundled import area_names
from conformance.plan.costs import DEAR, Costs, is_compiled, measured
from tests.standard.costs import bound, costs_of, simulated


def test_dear_cases_come_first_and_the_others_keep_their_order() -> None:
    costs = Costs({"a.one": 3.0, "b.two": 9.0, "c.three": DEAR / 2}, {"a": 0.01})

    assert _ordered(costs, ["a.x", "a.one", "c.three", "b.two", "d.y"]) == ["b.two", "a.one", "a.x", "c.three", "d.y"]


def test_one_compiled_case_starts_at_once_and_the_others_follow_the_dear_ones() -> None:
    # On two workers, the second one would wait half a minute for the compiler's headers, which the first one prepares.
    costs = Costs({"a.one": 3.0, "b.two": 9.0, "c.three": 8.0, "d.four": 0.3, "e.five": 5.0}, {"a": 0.01})

    ids = ["a.x", "a.one", "b.two", "c.three", "d.four", "e.five"]
    assert _ordered(costs, ids, {"a.x", "a.one", "c.three", "e.five"}) == [
        "c.three",
        "b.two",
        "d.four",
        "e.five",
        "a.one",
        "a.x",
    ]


def test_compiled_cases_are_known_by_their_requirements() -> None:
    assert is_compiled(["device", "compile"])
    assert is_compiled(["invariance.compile[bfloat16]"])
    assert not is_compiled(["device", "dtype[float32]"])


def _ordered(costs: Costs, ids: list[str], compiled: Collection[str] = ()) -> list[str]:
    return sorted(ids, key=costs.ranks(ids, compiled).__getitem__)


def test_an_unknown_case_has_its_areas_median() -> None:
    costs = costs_of({"a.one": 0.02, "a.two": 0.04, "a.three": 0.06, "a.dear": 7.0})

    assert costs.seconds("a.new") == 0.04
    assert costs.seconds("a.dear") == 7.0
    assert costs.seconds("z.new") > 0


def test_the_file_knows_every_area() -> None:
    assert sorted(measured().areas) == area_names()


@pytest.mark.parametrize("workers", [2, 4, 8, 16])
def test_a_simulated_run_ends_near_the_bound(workers: int) -> None:
    # The sizes of a whole run: a few dear cases, thousands of cheap ones.
    chance = random.Random(34)
    seconds = {f"a.{n}": chance.paretovariate(0.9) / 100 for n in range(15_000)}
    seconds = {id: min(taken, 10.0) for id, taken in seconds.items()}
    order = _ordered(costs_of(seconds), list(seconds))

    length = simulated([seconds[id] for id in order], workers)
    assert length <= 1.03 * bound(seconds.values(), workers)
    # With the dear cases last, the same run is longer.
    assert length < simulated([seconds[id] for id in reversed(order)], workers)
