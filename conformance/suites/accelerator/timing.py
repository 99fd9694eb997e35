"""Checks of times: a failure counts only if the machine was free while the times were taken."""

from __future__ import annotations

from conformance.finding import environment_lacks
from conformance.process.machine import disturbance

#: Tries of one check. A delay that hits one measurement seldom hits the next ones as well.
TRIES = 4


def hold(attempt):
    """Return the result of ``attempt()``, which takes times and asserts a law about them, in the first try that holds.

    If no try holds, raise the failure of a try during which the machine was free. If it never was, end the case as
    ``environment``: then the times say nothing about the device.
    """
    failure = None
    for _ in range(TRIES):
        with disturbance() as during:
            try:
                return attempt()
            except AssertionError as error:
                failed = error
        if not during.sentence:
            failure = failed
    if failure is None:
        environment_lacks(f"times cannot be judged on this machine now: {during.sentence}. The last try: {failed}")
    raise failure
