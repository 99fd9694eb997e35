"""Tells what each family of inputs of the operators costs, and which faults it kills that no other family does.

``python -m tests.faults.families KILLERS… --out FILE``. KILLERS is what ``python -m tests.faults.killers`` has written.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tabulate import tabulate

from tests.defects import bench

from . import forks
from .killers import apart

#: Seconds of each family by the axes of a cell, such as ``float32-inference``.
Seconds = Mapping[str, Mapping[str, float]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table of the families, and write the seconds of each."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.families", description=__doc__)
    parser.add_argument("killers", metavar="KILLERS", type=Path, nargs="*", help="files of tests.faults.killers")
    parser.add_argument("--sample", type=int, default=1000, help="cases of operators whose seconds are measured")
    parser.add_argument("--seed", default="families", help="any text")
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side")
    parser.add_argument("--out", type=Path, required=True, help="JSON file")
    options = parser.parse_args(arguments)
    bench.loaded("sim")
    forks.prepare()
    seconds = measured(options.sample, options.seed, options.jobs)
    options.out.write_text(json.dumps(seconds, indent=1) + "\n", encoding="utf-8")
    rows = [json.loads(line) for path in options.killers for line in path.read_text(encoding="utf-8").splitlines()]
    print(table(seconds, [{name for names in row["reds"].values() for name in names} for row in rows]))
    return 0


def measured(sample: int, seed: str, jobs: int) -> Seconds:
    """Return the processor seconds of each family in all cells of the same axes, measured in some of them."""
    every = [id for id in bench.plan("operators") if not id.endswith("[error-inputs]")]
    chosen = random.Random(seed).sample(every, min(sample, len(every)))
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for timed in forks.run(chosen, _measure, jobs):
        found[axes(timed.task)].update(timed.messages[-1] if timed.messages else {})
    some, whole = Counter(map(axes, chosen)), Counter(map(axes, every))
    return {
        name: {family: value * whole[name] / some[name] for family, value in parts.items()}
        for name, parts in found.items()
    }


def axes(id: str) -> str:
    """Return what stands in the brackets of a case's id."""
    return id.partition("[")[2].removesuffix("]")


def _measure(case: str, send: forks.Send) -> None:
    """Send the seconds of each family of a case on the healthy device."""
    place = bench.Bench()
    with apart() as record:
        place.run(case)
        record.seconds.clear()  # the first run imports
        place.run(case)
    send(dict(record.seconds))


def table(seconds: Seconds, kills: Iterable[set[str]]) -> str:
    """Return the families, the dearest first: seconds of a whole run, faults that each kills, and kills alone."""
    spent, every, alone = Counter[str](), Counter[str](), Counter[str]()
    for parts in seconds.values():
        spent.update(parts)
    for names in kills:
        every.update(names)
        alone.update(names if len(names) == 1 else ())
    rows = [
        (name, f"{spent[name]:.1f}", every[name], alone[name])
        for name in sorted({*spent, *every}, key=lambda name: -spent[name])
    ]
    return tabulate(rows, ["family", "seconds", "kills", "alone"], disable_numparse=True)


if __name__ == "__main__":
    sys.exit(main())
