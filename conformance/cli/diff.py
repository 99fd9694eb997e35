"""``conformance diff``: compare two reports case by case."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

SUMMARY = "Compare two reports case by case."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("before", metavar="BEFORE", type=Path, help="the earlier report: a report.json or a report folder")
    add("now", metavar="NOW", type=Path, help="the later report")
    add("--format", metavar="FORMAT", default="text", help="text (default), json or markdown")


def run(arguments: argparse.Namespace) -> int:
    """Print the differences. Exit status 1 means that there are some, as with ``diff``."""
    from conformance.cli.gate import require
    from conformance.cli.main import known_name
    from conformance.reports.diff import FORMATS, compare
    from conformance.reports.loading import load

    render = FORMATS[known_name("format", arguments.format, FORMATS)]
    require(arguments.before)
    require(arguments.now)
    difference = compare(load(arguments.before), load(arguments.now))
    sys.stdout.write(render(difference))
    return 1 if difference.differs else 0
