"""``conformance diff``: what changed between two reports, case by case."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

SUMMARY = "Compare two reports case by case."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("before", metavar="BEFORE", type=Path, help="a report.json, or a report folder")
    add("now", metavar="NOW", type=Path, help="another one")
    add("--format", metavar="FORMAT", default="text", help="text (default), json or markdown")


def run(arguments: argparse.Namespace) -> int:
    from conformance.cli.gate import require
    from conformance.cli.main import known_name
    from conformance.reports.diff import FORMATS, compare
    from conformance.reports.loading import load

    form = FORMATS[known_name("format", arguments.format, FORMATS)]
    require(arguments.before)
    require(arguments.now)
    found = compare(load(arguments.before), load(arguments.now))
    sys.stdout.write(form(found))
    return 1 if found.differs else 0
