"""Many short cases that note every execution in a file, for runs that are killed. Run by test_chaos.py."""

import os
import time
from pathlib import Path

from conformance.plan.case import case

COUNT = 60


@case("slow.step", axes={"n": [str(n) for n in range(COUNT)]})
def test_step(n):
    """Takes a moment, and fails for every tenth."""
    with Path(os.environ["CHAOS_LOG"]).open("a") as log:
        log.write(f"{n}\n")
    time.sleep(0.1)
    assert int(n) % 10 != 9, f"step {n} is one of those that fail"
