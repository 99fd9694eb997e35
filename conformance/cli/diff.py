"""``conformance diff``: compare two reports case by case."""

from __future__ import annotations

import argparse
import sys
from datetime import date
from pathlib import Path

from conformance.base.errors import UsageError

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
    add(
        "--since",
        metavar="DATE",
        help="compare the last run in folder BEFORE with the newest one of that day or before",
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
    if arguments.since and now is not None:
        raise UsageError("--since DATE needs one report folder: its earlier runs are searched.")
    if now is None:
        before, now = _run_before(arguments.before, arguments.since), arguments.before
    require(now)
    difference = compare(*load_together([before, now]))
    sys.stdout.write(render(difference))
    return 1 if difference.differs else 0


def _run_before(folder: Path, since: str | None) -> Path:
    """Return the newest earlier run in a report folder, of a day or before; UsageError if there is none."""
    from conformance.reports.history import earlier_runs, runs_until

    runs = earlier_runs(folder)
    if since is not None:
        found = runs_until(runs, _day(since))
        if runs and not found:
            raise UsageError(f"{folder} keeps no run of {since} or before; its oldest is {runs[0].name[:8]}.")
        runs = found
    if runs:
        return runs[-1]
    raise UsageError(f"{folder} keeps no earlier run. Name two reports: conformance diff BEFORE NOW.")


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise UsageError(f"--since {text}: expected a date such as 2026-12-31.") from None
