"""Speed of two workers compared with one, memory per worker, and cost of recording a result after 16,000."""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.process import conformance
from benchmarks.table import Row, main, times
from conformance.reports.journal import JournalWriter
from conformance.reports.verdict import passed

RESULTS_BEFORE, RESULTS_TIMED = 16_000, 1_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shard", default="1/1", help="part K/N of the float32 operator cells (default: all)")


def measure(arguments: argparse.Namespace) -> list[Row]:
    selection = ("--area=operators", "--dtype=float32", f"--shard={arguments.shard}", "-q")
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        conformance(*selection, "--collect-only", cwd=here)  # fills the cache of the operator database
        one_worker, two_workers = (conformance(*selection, f"-n{workers}", cwd=here) for workers in (1, 2))
        append = append_cost(here / "journal.jsonl")
    peak = max(one_worker.peak_mb, two_workers.peak_mb)
    return [
        Row(
            "-n2 over -n1: cases per second",
            f"{two_workers.per_second:.1f}",
            "≥ 1.7×",
            f"{one_worker.per_second:.1f} (-n1)",
            times(two_workers.per_second / one_worker.per_second),
        ),
        Row(
            "peak memory of a worker",
            f"{peak:.0f} MB",
            "≤ 2,000 MB",
            "20,700 MB",
        ),
        Row("recording one result after 16,000", f"{append * 1e3:.3f} ms", "≤ 1 ms", "860 ms"),
    ]


def append_cost(path: Path) -> float:
    """Return the median seconds to append a verdict to a journal that has 16,000."""
    journal, verdict = JournalWriter(path), passed(comparisons=12, error=1.25e-7)
    for number in range(RESULTS_BEFORE):
        journal.end(f"operators.example[float32-{number}]", verdict, 0.01)
    seconds = []
    for number in range(RESULTS_TIMED):
        started = time.perf_counter()
        journal.end(f"operators.example[bfloat16-{number}]", verdict, 0.01)
        seconds.append(time.perf_counter() - started)
    journal.close()
    return statistics.median(seconds)


if __name__ == "__main__":
    main(__doc__ or "", add_arguments, measure)
