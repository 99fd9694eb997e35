"""Sides that are measured in one process, in turn."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable

Side = Callable[[], object]


def medians(sides: dict[str, Side], rounds: int) -> dict[str, float]:
    """Seconds of each, one call a round, in an order of each round's own; the first round warms up.

    Who follows a copy finds other things in the caches than who follows a step.
    """
    taken: dict[str, list[float]] = {name: [] for name in sides}
    order = random.Random(rounds)
    for _ in range(rounds + 1):
        for name, side in order.sample(sorted(sides.items()), len(sides)):
            start = time.perf_counter()
            side()
            taken[name].append(time.perf_counter() - start)
    return {name: statistics.median(values[1:]) for name, values in taken.items()}
