"""Covering arrays: few choices, or rows of values, in which each two or three places take all combinations."""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Sequence
from typing import Final

#: Rows that are drawn for each one that is taken.
_DRAWN: Final = 12


@functools.cache
def covering(count: int) -> tuple[frozenset[int], ...]:
    """Return the fewest sets of places from 0 below ``count`` that cover each two places in all four ways.

    Of each two places there is a set with both, one with neither, and one with each of them alone. The first set is
    empty. Four sets cover three places, six cover ten: a covering array of strength two by Kleitman and Spencer,
    "Families of k-independent sets", Discrete Mathematics 6 (1973).
    """
    if count < 2:
        return tuple(frozenset(range(size)) for size in range(count + 1))
    sets = next(sets for sets in itertools.count(4) if math.comb(sets - 1, (sets + 1) // 2) >= count)
    # Each place is in a choice of its own of more than half of the sets behind the first: two of them overlap.
    choices = itertools.islice(itertools.combinations(range(1, sets), (sets + 1) // 2), count)
    members = list(map(frozenset, choices))
    return tuple(frozenset(place for place, of in enumerate(members) if number in of) for number in range(sets))


@functools.cache
def covering_rows(sizes: tuple[int, ...], strength: int, seed: str) -> tuple[tuple[int, ...], ...]:
    """Return rows of values, one below each of ``sizes``, in which each ``strength`` places take all combinations.

    Again and again, the row of some drawn ones that covers most of what is left: a greedy choice after Cohen, Dalal,
    Fredman and Patton, "The AETG system", IEEE Transactions on Software Engineering 23 (1997). Another seed gives other
    rows, which cover other combinations of more places.
    """
    chance = random.Random(seed)  # noqa: S311 - no secret is drawn
    choices = [*itertools.combinations(range(len(sizes)), strength)]
    left = dict.fromkeys(
        (places, values)
        for places in choices
        for values in itertools.product(*(range(sizes[place]) for place in places))
    )
    rows: list[tuple[int, ...]] = []

    def covered(row: Sequence[int]) -> set[tuple[tuple[int, ...], tuple[int, ...]]]:
        return {(places, tuple(row[place] for place in places)) for places in choices} & left.keys()

    while left:
        # Each drawn row has one combination that is left: so every row covers something.
        places, values = chance.choice(list(left))
        drawn = []
        for _ in range(_DRAWN):
            row = [chance.randrange(size) for size in sizes]
            for place, value in zip(places, values, strict=True):
                row[place] = value
            drawn.append(tuple(row))
        best = max(drawn, key=lambda row: len(covered(row)))
        for combination in covered(best):
            del left[combination]
        rows.append(best)
    return tuple(rows)
