"""Pairs of cases that kill two workers at the same moment. Run by test_chaos.py."""

import os
import time

from conformance.plan.case import case

COUNT = 12


@case("twin.dies", axes={"n": [str(n) for n in range(COUNT)]})
def test_dies(n):
    """Ends its process on the next tenth of a second, as its neighbour does."""
    time.sleep(0.1 - time.time() % 0.1)
    os._exit(int(n))
    raise AssertionError("the process outlived its end")
