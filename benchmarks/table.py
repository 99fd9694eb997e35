"""Rows of results, and their table in Markdown."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tabulate import tabulate

HEADERS = ("metric", "peer", "here", "goal", "ratio")


@dataclass(frozen=True)
class Row:
    """Measured number; ``peer`` is the number that it is compared with, and ``ratio`` relates the two."""

    metric: str
    here: str
    goal: str = ""
    peer: str = ""
    ratio: str = ""

    @property
    def cells(self) -> tuple[str, ...]:
        return tuple(getattr(self, name) for name in HEADERS)


def times(value: float) -> str:
    return f"{value:.2f}×"


def markdown(rows: Sequence[Row]) -> str:
    return str(tabulate([row.cells for row in rows], headers=HEADERS, tablefmt="github", disable_numparse=True))


Measure = Callable[[argparse.Namespace], list[Row]]


def main(doc: str, add_arguments: Callable[[argparse.ArgumentParser], None], measure: Measure) -> None:
    """Run one benchmark from the command line and print its table."""
    parser = argparse.ArgumentParser(description=doc)
    add_arguments(parser)
    parser.add_argument("--record", action="store_true", help="write the rows to benchmarks/measured.json")
    arguments = parser.parse_args()
    rows = measure(arguments)
    sys.stdout.write(markdown(rows) + "\n")
    if arguments.record:
        from benchmarks.record import record

        record(rows)
