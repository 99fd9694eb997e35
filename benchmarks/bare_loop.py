"""Operator cells in a plain loop in one process: no pytest, no watchdog, no journal.

The program prints the seconds of the loop and the number of comparisons as JSON, for harness_overhead.py.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time

import numpy as np
import torch

from conformance.judging.checker import Checker
from conformance.plan.case import Case, seed_of
from conformance.plan.selection import in_shard
from conformance.suites.operators import cell
from conformance.suites.operators.plan import catalogue


def chosen(dtype: str, shard: tuple[int, int]) -> list[Case]:
    return [case for case in catalogue.generate() if case.dtype == dtype and in_shard(case.id, *shard)]


def loop(cases: list[Case]) -> tuple[int, int]:
    """Run the cells; return the numbers of comparisons and of cells that raised an exception."""
    device, check, failed = torch.device("cpu"), Checker(), 0
    for case in cases:
        seed = seed_of(case.id)
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        try:
            cell.run(case, device, check)
        except Exception:  # noqa: BLE001 - a cell that is not claimed may raise anything
            failed += 1
    return check.count, failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dtype")
    parser.add_argument("k", type=int)
    parser.add_argument("n", type=int)
    arguments = parser.parse_args()
    cases = chosen(arguments.dtype, (arguments.k, arguments.n))
    loop(cases[:1])  # loads the operator database; the suite's time is taken from its first verdict on

    started = time.perf_counter()
    comparisons, failed = loop(cases)
    seconds = time.perf_counter() - started

    sys.stdout.write(
        json.dumps({"cases": len(cases), "seconds": seconds, "comparisons": comparisons, "failed": failed})
    )


if __name__ == "__main__":
    main()
