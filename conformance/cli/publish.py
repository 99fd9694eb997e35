"""``conformance publish``: write one page with the support table of several accelerators."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from conformance.errors import UsageError

if TYPE_CHECKING:
    from conformance.reports.page.columns import PublishedReport, ReportOrigin

SUMMARY = "Write one page with the results of several accelerators."

_DEFAULT: Final = Path("conformance-page")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths",
        metavar="REPORT",
        type=Path,
        nargs="*",
        help="report folders or report.json files; the newest run of an accelerator becomes its column, "
        "older runs become its history",
    )
    parser.add_argument(
        "--upstream",
        metavar="REPORT",
        type=Path,
        action="append",
        default=[],
        help="a report of a run by the maintainers; it gets its own column",
    )
    parser.add_argument(
        "--allowed-signers",
        metavar="FILE",
        type=Path,
        help="allowed signers; a card names the signer if a valid signature lies next to the report",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FOLDER",
        type=Path,
        default=_DEFAULT,
        help=f"the folder to write (default: {_DEFAULT})",
    )


def run(arguments: argparse.Namespace) -> int:
    from conformance.reports.page.columns import ReportOrigin
    from conformance.reports.page.publish import publish

    signers = arguments.allowed_signers
    if signers is not None and not signers.is_file():
        raise UsageError(f"there is no {signers}.")
    sources = [_source(path, ReportOrigin.VENDOR, signers) for path in arguments.paths]
    sources += [_source(path, ReportOrigin.UPSTREAM, signers) for path in arguments.upstream]
    for path in publish(sources, arguments.output):
        sys.stdout.write(f"{path}\n")
    return 0


def _source(path: Path, origin: ReportOrigin, signers: Path | None) -> PublishedReport:
    """Return a report of the page, with its signer where a valid signature lies beside it."""
    from conformance.reports.loading import load
    from conformance.reports.page.columns import PublishedReport

    return PublishedReport(load(path), origin, _signer(path, signers))


def _signer(path: Path, signers: Path | None) -> str:
    """Return the signer of the report; empty if no allowed signature verifies. The page then shows 'nobody'."""
    file = path / "report.json" if path.is_dir() else path
    if signers is None or not file.is_file():
        return ""
    from conformance.reports.gate.signatures import check

    signature = check(file, None, signers)
    return "" if signature.problem else signature.principal
