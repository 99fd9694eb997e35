"""Overhead of the harness: time of a run from its first verdict to its last, over a bare loop of the same cells."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from benchmarks.process import Finished, conformance, run
from benchmarks.table import Row, main, times

DTYPE = "float32"
ROOT = Path(__file__).parent.parent


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shard", default="1/1", help="part K/N of the float32 operator cells (default: all)")


def measure(arguments: argparse.Namespace) -> list[Row]:
    k, n = arguments.shard.split("/")
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        selection = ("--area=operators", f"--dtype={DTYPE}", f"--shard={arguments.shard}", "-q")
        conformance(*selection, "--collect-only", cwd=here)  # fills the cache of the operator database
        bare = bare_loop(k, n)
        runs = [(workers, conformance(*selection, f"-n{workers}", cwd=here)) for workers in (0, 1)]
    return [row(workers, finished, bare) for workers, finished in runs]


def bare_loop(k: str, n: str) -> dict[str, float]:
    finished = run([sys.executable, "-m", "benchmarks.bare_loop", DTYPE, k, n], cwd=ROOT)
    if finished.status:
        raise SystemExit(finished.output)
    numbers: dict[str, float] = json.loads(finished.output.splitlines()[-1])
    return numbers


def row(workers: int, finished: Finished, bare: dict[str, float]) -> Row:
    if finished.outcomes["selected"] != bare["cases"]:
        raise SystemExit(f"the loop ran {bare['cases']:.0f} cells, the suite {finished.outcomes['selected']}")
    work = f"{bare['cases']:.0f} {DTYPE} cells, {bare['comparisons']:.0f} comparisons"
    return Row(
        f"harness over a bare loop, {work}, -n{workers} (s)",
        f"{finished.steady:.1f}",
        "≤ 1.5×",
        f"{bare['seconds']:.1f} (bare loop)",
        times(finished.steady / bare["seconds"]),
    )


if __name__ == "__main__":
    main(__doc__ or "", add_arguments, measure)
