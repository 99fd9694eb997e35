"""``conformance publish``: the support table of several accelerators as one page."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

_DEFAULT: Final = Path("conformance-page")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths",
        metavar="REPORT",
        type=Path,
        nargs="*",
        help="report folders or report.json files; of several runs of one accelerator the newest is its column, "
        "the others are its history",
    )
    parser.add_argument(
        "--upstream",
        metavar="REPORT",
        type=Path,
        action="append",
        default=[],
        help="a report of a run by the maintainers; it gets a column of its own",
    )
    parser.add_argument(
        "-o", "--output", metavar="FOLDER", type=Path, default=_DEFAULT, help=f"where to write (default: {_DEFAULT})"
    )


def run(arguments: argparse.Namespace) -> int:
    from conformance.reports.loading import load
    from conformance.reports.page.columns import Origin, Source
    from conformance.reports.page.publish import publish

    sources = [Source(load(path)) for path in arguments.paths]
    sources += [Source(load(path), Origin.UPSTREAM) for path in arguments.upstream]
    for path in publish(sources, arguments.output):
        sys.stdout.write(f"{path}\n")
    return 0
