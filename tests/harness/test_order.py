"""Order of cases: the dear ones first, so that no worker waits at the end of a run."""

from __future__ import annotations

import random
from collections.abc import Collection

import pytest

from conformance.plan.bundled import area_names
from conformance.plan.costs import DEAR, Costs, is_compiled, measured
from conformance.runner.scheduling import Due, Groups, group_of
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
    order = [Due("", seconds[id]) for id in _ordered(costs_of(seconds), list(seconds))]

    length = simulated(order, workers)
    assert length <= 1.03 * bound(seconds.values(), workers)
    # With the dear cases last, the same run is longer.
    assert length < simulated(order[::-1], workers)


@pytest.mark.parametrize("workers", [2, 4, 8, 16])
def test_a_simulated_run_with_groups_ends_near_the_bound(workers: int) -> None:
    # The shares of a whole run, of which a dear case has two seconds.
    chance = random.Random(34)
    shares = {"compiler": 60, "ranks": 60, "models": 30, "": 150}
    order = [Due(group, chance.uniform(0.2, 2.0)) for group, number in shares.items() for _ in range(number)]
    order.sort(key=lambda case: -case.seconds)
    order += [Due("", 0.01) for _ in range(12_000)]

    assert simulated(order, workers) <= 1.03 * bound((case.seconds for case in order), workers)


def test_a_group_is_begun_by_few_workers() -> None:
    groups = Groups([Due("compiler", 2.0), Due("compiler", 2.0), Due("", 3.0), Due("", 3.0), Due("compiler", 2.0)], 2)
    waiting, living = [0, 1, 2, 3, 4], "ab"

    assert _taken(groups, waiting, "abbab", living) == [0, 2, 3, 1, 4]


def test_a_worker_begins_another_ones_group_rather_than_wait() -> None:
    groups = Groups([Due("ranks", 1.0)] * 3 + [Due("", 9.0)], 2)

    assert _taken(groups, [0, 1, 2], "abb", "ab") == [0, 1, 2]


def test_the_group_of_a_worker_that_has_ended_is_begun_anew() -> None:
    groups = Groups([Due("ranks", 1.0), Due("ranks", 1.0), Due("", 9.0)], 2)

    assert _taken(groups, [0], "a", "ab") == [0]
    assert _taken(groups, [2, 1], "bb", "bc") == [2, 1]
    assert _taken(groups, [1, 2], "c", "bc") == [2]


def _taken(groups: Groups, waiting: list[int], workers: str, living: str) -> list[int]:
    """Return the numbers of the cases that these workers get, one after the other."""
    return [waiting.pop(groups.choose(waiting, worker, living)) for worker in workers]


def test_a_group_is_what_the_first_case_loads() -> None:
    assert group_of(["comm", "compile"], 2, "unit") == "compiler"
    assert group_of(["comm"], 2, "workload") == "ranks"
    assert group_of(["dtype[float32]"], None, "workload") == "models"
    assert group_of(["dtype[float32]"], None, "unit") == ""
