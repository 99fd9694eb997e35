"""Sets that cover each two places in all four ways."""

from __future__ import annotations

import itertools

import pytest

from conformance.numerics.covering import covering


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 10, 11, 40])
def test_each_two_places_are_in_all_four_combinations(count: int) -> None:
    sets = covering(count)

    assert not sets[0]
    for one, other in itertools.combinations(range(count), 2):
        assert {(one in chosen, other in chosen) for chosen in sets} == set(itertools.product((False, True), repeat=2))


def test_few_sets_cover_many_places() -> None:
    assert [len(covering(count)) for count in (1, 2, 3, 4, 10, 15)] == [2, 4, 4, 5, 6, 7]
