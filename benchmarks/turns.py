"""Measurement of several sides in one process, in turn."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable

Side = Callable[[], object]


def medians(sides: dict[str, Side], rounds: int) -> dict[str, float]:
    """Return the median seconds of each side, with one call per round; the first round only warms up.

    Each round has its own random order, because the caches hold other data after a copy than after a step.
    """
    taken: dict[str, list[float]] = {name: [] for name in sides}
    order = random.Random(rounds)
    for _ in range(rounds + 1):
        for name, side in order.sample(sorted(sides.items()), len(sides)):
            start = time.perf_counter()
            side()
            taken[name].append(time.perf_counter() - start)
    return {name: statistics.median(values[1:]) for name, values in taken.items()}
