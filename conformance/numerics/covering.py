"""Choices of places in which each two places take all four combinations of chosen and not chosen."""

from __future__ import annotations

import functools
import itertools
import math


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
