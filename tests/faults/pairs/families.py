"""The three families of pairs: their populations, the draw, and who judges them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from tests.faults.judging import Judged

from . import collectives, judging, order, runs, state
from .pair import Pair, Part, population

FAMILIES = ("T", "S", "K")
_PARTS: dict[str, tuple[Part, ...]] = {"T": order.PARTS, "S": state.PARTS}


def size(family: str) -> int:
    """Return how many faults a family has."""
    return len(collectives.population()) if family == "K" else len(list(population(family, _PARTS[family])))


def drawn_and_judged(
    families: Sequence[str], draws: int, seed: str, processes: int, say: Callable[[str], None]
) -> list[Judged]:
    """Draw the same number of faults of each family and judge them. A seed draws the same ones every time."""
    pairs: list[Pair] = []
    results: list[Judged] = []
    for number, family in enumerate(families):
        share = draws // len(families) + (number < draws % len(families))
        choice = random.Random(f"{seed}:{family}")
        if family == "K":
            every = collectives.population()
            results += runs.judged(choice.sample(every, min(share, len(every))), say)
        else:
            known = list(population(family, _PARTS[family]))
            pairs += choice.sample(known, min(share, len(known)))
    return judging.judged(pairs, processes, say) + results
