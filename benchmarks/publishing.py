"""Time and memory of publishing 20,000 cases of nine accelerators, each with a history of twenty runs."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

from benchmarks.process import run
from benchmarks.table import Row, main
from conformance.reports.model import Report
from conformance.reports.report_json import to_json
from conformance.reports.verdict import Outcome, Reason

CASES = 20_000
FIRST_DAY = date(2026, 2, 1)
#: One of so many cases fails in each run, another one each time.
CHANGES = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--accelerators", type=int, default=9, help="number of accelerators (default: 9)")
    parser.add_argument("--runs", type=int, default=20, help="number of runs of each (default: 20)")


def measure(arguments: argparse.Namespace) -> list[Row]:
    checkout = str(Path(__file__).parent.parent)
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        for number in range(arguments.accelerators):
            # In a process of its own, because Linux counts this process's memory as the child's at first.
            words = f"from benchmarks.publishing import write; write({folder!r}, {number}, {arguments.runs})"
            done = run([sys.executable, "-c", words], cwd=here, environment={"PYTHONPATH": checkout})
            assert done.status == 0, done.output
        reports = sorted(os.listdir(here))
        done = run([sys.executable, "-m", "conformance.cli.main", "publish", *reports, "-o", "page"], cwd=here)
        assert done.status == 0, done.output
        size = (here / "page" / "index.html").stat().st_size
    what = f"publish: {arguments.accelerators} accelerators × {arguments.runs} runs of {CASES:,} cases"
    return [
        Row(f"{what}, processor time", f"{done.cpu_seconds:.0f} s", "≤ 60 s"),
        Row(f"{what}, processor time of one run", f"{1000 * done.cpu_seconds / len(reports):.0f} ms"),
        Row(f"{what}, peak memory", f"{done.peak_mb:.0f} MB", "≤ 500 MB"),
        Row(f"{what}, the page", f"{size / 2**20:.2f} MiB", "≤ 1 MiB without history"),
    ]


def write(folder: str, number: int, runs: int) -> None:
    """Write the reports of one accelerator: the same verdicts, but for other failures in each run."""
    from tests.reports.page import many

    whole = many.large(f"accelerator{number}", CASES, number)
    for place in range(runs):
        day = FIRST_DAY + timedelta(days=place)
        text = to_json(_changed(whole, place, f"{day.isoformat()}T05:06:07+00:00"))
        (Path(folder) / f"accelerator{number}-{place:02}.json").write_text(text, encoding="utf-8")


def _changed(report: Report, place: int, started: str) -> Report:
    """Return the run of one day, in which some other cases fail."""
    cases = tuple(
        replace(case, outcome=Outcome.FAIL, reason=Reason.WRONG, message=f"max_ulp {place} > budget 4")
        if n % CHANGES == place
        else case
        for n, case in enumerate(report.cases)
    )
    return replace(report, run=replace(report.run, id=f"{report.run.id}-{place}", started=started), cases=cases)


if __name__ == "__main__":
    main(__doc__ or "", add_arguments, measure)
