"""Sets that cover each two places in all four ways."""

from __future__ import annotations

import itertools
import math

import pytest

from conformance.numerics.covering import covering, covering_rows


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 10, 11, 40])
def test_each_two_places_are_in_all_four_combinations(count: int) -> None:
    sets = covering(count)

    assert not sets[0]
    for one, other in itertools.combinations(range(count), 2):
        assert {(one in chosen, other in chosen) for chosen in sets} == set(itertools.product((False, True), repeat=2))


def test_few_sets_cover_many_places() -> None:
    assert [len(covering(count)) for count in (1, 2, 3, 4, 10, 15)] == [2, 4, 4, 5, 6, 7]


@pytest.mark.parametrize(("sizes", "strength"), [((2, 3, 4), 2), ((5, 3, 4, 2, 3), 3), ((2, 2), 2)])
def test_rows_take_all_combinations(sizes: tuple[int, ...], strength: int) -> None:
    rows = covering_rows(sizes, strength, "a seed")

    assert all(0 <= value < size for row in rows for value, size in zip(row, sizes, strict=True))
    for places in itertools.combinations(range(len(sizes)), strength):
        due = math.prod(sizes[place] for place in places)
        assert len({tuple(row[place] for place in places) for row in rows}) == due


def test_few_rows_take_all_combinations_and_another_seed_gives_others() -> None:
    sizes = (5, 3, 4, 2, 3)
    rows = covering_rows(sizes, 3, "a seed")

    assert len(rows) < math.prod(sizes) / 3
    assert rows == covering_rows(sizes, 3, "a seed") != covering_rows(sizes, 3, "another")
