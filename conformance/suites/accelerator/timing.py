"""Checks of times, which a busy machine may delay: they are repeated before a failure counts."""

from __future__ import annotations

from conformance.judging.finding import environment_lacks
from conformance.process.machine import disturbance

#: Tries that have to fail while the machine is free. A delay that hits one measurement seldom hits the next ones.
TRIES = 4
#: Tries that have to fail otherwise. If a busy machine spoils every second try, all of them fail once in 256 runs.
BUSY_TRIES = 8


def hold(attempt):
    """Return the result of ``attempt()``, which takes times and asserts a law about them, in the first try that holds.

    A device that breaks the law breaks it in every try, so the failure of the last try is raised. If this process
    hardly got a processor in all of the tries, the times say nothing about the device: the case ends as
    ``environment``.
    """
    free = starved = 0
    for _ in range(BUSY_TRIES):
        with disturbance() as during:
            try:
                return attempt()
            except AssertionError as error:
                failure = error
        free += not during.sentence
        starved += during.starved
        if free == TRIES:
            break
    if starved == BUSY_TRIES:
        environment_lacks(f"times cannot be judged on this machine now: {during.sentence}. The last try: {failure}")
    raise failure
