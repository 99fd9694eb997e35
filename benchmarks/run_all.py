"""Benchmarks that need no special machine, in one table. ``--small`` only shows that each script works."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

# For a script, Python looks for modules in this folder and not in the checkout above it.
sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import (
    against_torchcts,
    collection,
    gate,
    harness_overhead,
    low_latency,
    scaling,
    sharded_gather,
)
from benchmarks.record import machine, record
from benchmarks.table import Row, markdown

SMALL = {"operators": 2, "shard": "1/16", "repeats": 5, "judgements": 2, "reduce_rounds": 2, "gather_rounds": 2}
SCRIPTS = (collection, gate, harness_overhead, scaling, low_latency, sharded_gather, against_torchcts)


def part_of(text: str) -> tuple[int, int]:
    """Return K and N of a part; raise ArgumentTypeError if the text names none."""
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise argparse.ArgumentTypeError(f"expected K/N with 1 ≤ K ≤ N, such as 1/6, not {text}")
    return int(match[1]), int(match[2])


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="few cells and repeats; the numbers mean little")
    parser.add_argument(
        "--without-peer", action="store_true", help="leave out TorchCTS, for which a torch is installed"
    )
    parser.add_argument("--part", type=part_of, default=(1, 1), metavar="K/N", help="only part K of N of the scripts")
    parser.add_argument("--record", action="store_true", help="write the rows to benchmarks/measured.json")
    against_torchcts.add_arguments(parser)
    collection.add_arguments(parser)
    gate.add_arguments(parser)
    scaling.add_arguments(parser)
    low_latency.add_arguments(parser)
    sharded_gather.add_arguments(parser)
    arguments = parser.parse_args()
    if arguments.small:
        vars(arguments).update(SMALL)
    return arguments


def main() -> None:
    arguments = parse()
    rows: list[Row] = []
    number, parts = arguments.part
    scripts = [script for script in SCRIPTS if not (script is against_torchcts and arguments.without_peer)]
    for script in scripts[number - 1 :: parts]:
        sys.stderr.write(f"{script.__name__} …\n")
        measured = script.measure(arguments)
        sys.stderr.write(f"{markdown(measured)}\n")  # visible even if a later script fails
        rows += measured
    sys.stdout.write(f"{markdown(rows)}\n\n{machine()}\n")
    if arguments.record:
        record(rows)


if __name__ == "__main__":
    main()
