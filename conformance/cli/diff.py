"""``conformance diff``: compare two reports case by case."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

SUMMARY = "Compare two reports case by case."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("before", metavar="BEFORE", type=Path, help="the earlier report: a report.json or a report folder")
    add(
        "now",
        metavar="NOW",
        type=Path,
        nargs="?",
        help="the later report; without it, the last run in folder BEFORE is compared with the run before it",
    )
    add("--format", metavar="FORMAT", default="text", help="text (default), json or markdown")


def run(arguments: argparse.Namespace) -> int:
    """Print the differences. Exit status 1 means that there are some, as with ``diff``."""
    from conformance.cli.gate import require
    from conformance.cli.main import known_name
    from conformance.reports.diff import FORMATS, compare
    from conformance.reports.loading import load_together

    render = FORMATS[known_name("format", arguments.format, FORMATS)]
    require(arguments.before)
    before, now = arguments.before, arguments.now
    if now is None:
        before, now = _run_before(arguments.before), arguments.before
    require(now)
    difference = compare(*load_together([before, now]))
    sys.stdout.write(render(difference))
    return 1 if difference.differs else 0


def _run_before(folder: Path) -> Path:
    """Return the newest earlier run that a report folder keeps; UsageError if it keeps none."""
    from conformance.base.errors import UsageError
    from conformance.reports.history import earlier_runs

    if runs := earlier_runs(folder):
        return runs[-1]
    raise UsageError(f"{folder} keeps no earlier run. Name two reports: conformance diff BEFORE NOW.")
