"""``conformance report``: print a report, also of a run that was killed."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import Final

_WIDTH: Final = 120
_FORMATS: Final = (
    "text (default), markdown, json, junit, ctrf, summary (Markdown for a CI job), packed (JSON), badge (SVG) or "
    "endpoint (JSON for a badge service)"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path",
        metavar="PATH",
        type=Path,
        nargs="?",
        default=Path("conformance-report"),
        help="a report folder, a report.json, or a journal.jsonl (default: conformance-report)",
    )
    parser.add_argument("--format", metavar="FORMAT", default="text", help=_FORMATS)
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="write to FILE instead of the terminal")


def run(arguments: argparse.Namespace) -> int:
    from conformance.reports.loading import load
    from conformance.reports.views import find_view
    from conformance.reports.writer import write_text

    view = find_view(arguments.format)
    report = load(arguments.path)
    if arguments.output is None:
        sys.stdout.write(view(report, _terminal_width()))
    else:
        write_text(arguments.output, view(report, _WIDTH))
    return 0


def _terminal_width() -> int:
    return shutil.get_terminal_size((_WIDTH, 24)).columns if sys.stdout.isatty() else _WIDTH
