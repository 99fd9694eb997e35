"""``conformance report``: print a report, also that of a killed run."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import Final

from conformance.reports.views import DEFAULT, all_views, find_view

SUMMARY = "Print a report folder, a report.json or a journal."

#: Columns of output that does not go to a terminal.
_WIDTH: Final = 120


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path",
        metavar="PATH",
        type=Path,
        nargs="?",
        default=Path("conformance-report"),
        help="a report folder, a report.json, or a journal.jsonl (default: conformance-report)",
    )
    parser.add_argument("--format", metavar="FORMAT", default=DEFAULT, help=_formats())
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="write to FILE instead of the terminal")


def _formats() -> str:
    return ", ".join(f"{view.name} ({view.summary})" for view in all_views())


def run(arguments: argparse.Namespace) -> int:
    from conformance.reports.loading import load
    from conformance.reports.writer import write_text

    view = find_view(arguments.format)
    report = load(arguments.path)
    if arguments.output is None:
        sys.stdout.write(view.render(report, _terminal_width()))
    else:
        write_text(arguments.output, view.render(report, _WIDTH))
    return 0


def _terminal_width() -> int:
    return shutil.get_terminal_size((_WIDTH, 24)).columns if sys.stdout.isatty() else _WIDTH
