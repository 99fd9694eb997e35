"""``conformance publish``: write one page with the support table of several accelerators."""

from __future__ import annotations

import argparse
import fnmatch
import sys
from dataclasses import replace
from datetime import datetime, timezone
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
        "--signers",
        metavar="FILE",
        type=Path,
        help="which signer may sign for which accelerators, a TOML file; a card names no other signer",
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

    allowed, signers = arguments.allowed_signers, arguments.signers
    for path in (allowed, signers):
        if path is not None and not path.is_file():
            raise UsageError(f"there is no {path}.")
    if signers is not None and allowed is None:
        raise UsageError("--signers needs --allowed-signers FILE: a signature is verified against allowed signers.")
    origins = [(path, ReportOrigin.VENDOR) for path in arguments.paths]
    origins += [(path, ReportOrigin.UPSTREAM) for path in arguments.upstream]
    sources = [_judged(_source(path, origin, allowed, signers), path) for path, origin in origins]
    if None in sources:
        return 1
    for path in publish([source for source in sources if source is not None], arguments.output):
        sys.stdout.write(f"{path}\n")
    for source, (path, _) in zip(sources, origins, strict=True):
        _warn(source, path)
    return 0


def _judged(source: PublishedReport, path: Path) -> PublishedReport | None:
    """Return the report with the gate's decision; None for one that must not be published, after saying why."""
    from conformance.reports.gate.admission import judge, refusal
    from conformance.reports.loading import MAX_CASES_OF_COLUMN, require_at_most
    from conformance.reports.plain_text import one_line

    require_at_most(MAX_CASES_OF_COLUMN, [source.report])
    now = datetime.now(timezone.utc)
    if why := refusal(source.report, now):
        sys.stderr.write(f"{one_line(f'{path}: {why}', 400)} Nothing is published.\n")
        return None
    return replace(source, decision=judge(source.report, now, source.signer))


def _warn(source: PublishedReport | None, path: Path) -> None:
    """Say on stderr that a published report is rejected by the gate."""
    from conformance.reports.plain_text import one_line

    if source and source.decision and source.decision.rejections:
        said = f"{path}: the gate rejects it ({', '.join(source.decision.rejecting)}); its card says so"
        sys.stderr.write(f"{one_line(said, 400)}. See: conformance gate {one_line(str(path), 200)}\n")


def _source(path: Path, origin: ReportOrigin, allowed: Path | None, signers: Path | None) -> PublishedReport:
    """Return a report of the page, with its signer where a valid signature lies beside it.

    With allowed signers, the bytes of ``report.json`` are read once: what the page shows is what the signature covers.
    """
    from conformance.reports.loading import load, read_report_file, report_json_in
    from conformance.reports.page.columns import PublishedReport

    file = report_json_in(path) if path.is_dir() else path
    if allowed is None or file is None or file.suffix == ".jsonl":
        return PublishedReport(load(path), origin)
    read = read_report_file(file)
    report = read.report()
    return PublishedReport(report, origin, _signer(read, report.accelerator.name, allowed, signers))


def _signer(file: ReportFile, accelerator: str, allowed: Path, signers: Path | None) -> str:
    """Return the signer of the report; empty if no allowed signature verifies. The page then shows 'nobody'."""
    from conformance.reports.gate.signatures import check, signature_path
    from conformance.reports.gate.signers import accelerators_of
    from conformance.reports.plain_text import one_line

    signature = check(file, None, allowed)
    if not signature.problem and signers is not None:
        names = accelerators_of(signature.principal, signers)
        if not any(fnmatch.fnmatchcase(accelerator, name) for name in names):
            signature = replace(signature, problem=f"{signature.principal} may not sign for {accelerator!a}.")
    if signature.problem and signature_path(file.path).is_file():
        sys.stderr.write(f"{one_line(f'{file.path}: {signature.problem}')} The page says 'nobody'.\n")
    return "" if signature.problem else signature.principal
