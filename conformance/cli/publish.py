"""``conformance publish``: write one page with the support table of several accelerators."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from conformance.errors import UsageError

if TYPE_CHECKING:
    from conformance.reports.loading import ReportFile
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
    """Return a report of the page, with its signer where a valid signature lies beside it.

    With allowed signers, the bytes of ``report.json`` are read once: what the page shows is what the signature covers.
    """
    from conformance.reports.loading import load, read_report_file, report_json_in
    from conformance.reports.page.columns import PublishedReport

    file = report_json_in(path) if path.is_dir() else path
    if signers is None or file is None or file.suffix == ".jsonl":
        return PublishedReport(load(path), origin)
    read = read_report_file(file)
    return PublishedReport(read.report(), origin, _signer(read, signers))


def _signer(file: ReportFile, signers: Path) -> str:
    """Return the signer of the report; empty if no allowed signature verifies. The page then shows 'nobody'."""
    from conformance.reports.gate.signatures import check, signature_path
    from conformance.reports.plain_text import one_line

    signature = check(file, None, signers)
    if signature.problem and signature_path(file.path).is_file():
        sys.stderr.write(f"{one_line(f'{file.path}: {signature.problem}')} The page says 'nobody'.\n")
    return "" if signature.problem else signature.principal
