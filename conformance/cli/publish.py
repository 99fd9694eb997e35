"""``conformance publish``: write one page with the support table of several accelerators."""

from __future__ import annotations

import argparse
import gzip
import re
import sys
import zlib
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Final

from conformance.base.errors import ConformanceError, UsageError
from conformance.cli.gate import add_signature_arguments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from conformance.reports.loading import ReportFile
    from conformance.reports.page.columns import PageColumn, PublishedReport, ReportOrigin

SUMMARY = "Write one page with the results of several accelerators."

#: Bytes of a report in which its start stands, and the start.
_HEAD_BYTES: Final = 4096
_STARTED: Final = re.compile(rb'"started": ?"([0-9TZ:.+-]{10,40})"')
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
        help="allowed signers; the page names the signer if a valid signature lies next to the report",
    )
    add_signature_arguments(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FOLDER",
        type=Path,
        default=_DEFAULT,
        help=f"the folder to write (default: {_DEFAULT})",
    )


def run(arguments: argparse.Namespace) -> int:
    # Imported here, so that the help needs none of it.
    from conformance.reports.json_files import collector_paused

    files = {"--signers": arguments.signers, "--revoked-keys": arguments.revoked_keys}
    for path in (arguments.allowed_signers, *files.values()):
        if path is not None and not path.is_file():
            raise UsageError(f"there is no {path}.")
    for option, path in files.items():
        if path is not None and arguments.allowed_signers is None:
            raise UsageError(f"{option} needs --allowed-signers FILE: a signature is verified against allowed signers.")
    with collector_paused():
        return _publish(arguments)


def _publish(arguments: argparse.Namespace) -> int:
    """Read the reports, write the page, and say how many accelerators it has."""
    from conformance.reports.page.columns import ReportOrigin, make_columns
    from conformance.reports.page.publish import write

    origins = [(path, ReportOrigin.VENDOR) for path in arguments.paths]
    origins += [(path, ReportOrigin.UPSTREAM) for path in arguments.upstream]
    # The newest first: the other runs of a column then never take its place, which saves time and memory.
    origins.sort(key=lambda pair: _started(pair[0]), reverse=True)
    refused: list[str] = []
    names: dict[str, str] = {}
    # One report at a time: a column keeps its newest report and only the verdicts of the earlier ones.
    read = (_source(path, origin, arguments) for path, origin in origins)
    columns = make_columns(source for source in read if _is_admitted(source, names, refused))
    if refused:
        sys.stderr.writelines(f"{sentence} Nothing is published.\n" for sentence in refused)
        return 1
    judged = [replace(column, source=_judged(column.source)) for column in columns]
    for path in write(judged, arguments.output):
        sys.stdout.write(f"{path}\n")
    for column in judged:
        _warn(column.source)
    sys.stdout.write(f"{_conclusion(judged, len(origins))}\n")
    return 0


def _started(path: Path) -> tuple[datetime, str]:
    """Return when a run says that it started, from the head of its file. Reading the file decides, not this."""
    from conformance.reports.loading import report_json_in
    from conformance.reports.times import in_order

    try:
        file = report_json_in(path) if path.is_dir() else path
        head = b"" if file is None else _head(file)
    except (OSError, EOFError, zlib.error, ConformanceError):
        head = b""
    found = _STARTED.search(head)
    return in_order(found[1].decode() if found else "")


def _head(file: Path) -> bytes:
    """Return the first bytes of a report, compressed or not."""
    from conformance.reports.json_files import GZIP

    with file.open("rb") as opened:
        data = opened.read(_HEAD_BYTES)
    if not data.startswith(GZIP):
        return data
    with gzip.open(file) as unpacked:
        return unpacked.read(_HEAD_BYTES)


def _is_admitted(source: PublishedReport, names: dict[str, str], refused: list[str]) -> bool:
    """Return whether a report may be published; ``refused`` gets a sentence if not.

    ``names`` has the accelerators so far by the skeletons of their names: no two of them may look alike.
    """
    from conformance.reports.gate.admission import refusal
    from conformance.reports.loading import MAX_CASES_OF_COLUMN, require_at_most
    from conformance.reports.names import skeleton
    from conformance.reports.plain_text import one_line

    require_at_most(MAX_CASES_OF_COLUMN, [source.report])
    why, name = refusal(source.report, datetime.now(timezone.utc)), source.report.accelerator.name
    if not why and (other := names.setdefault(skeleton(name), name)) != name:
        why = f"The accelerator's name {one_line(name, 60)!a} looks like {one_line(other, 60)!a}, of another report."
    if why:
        refused.append(one_line(f"{source.path}: {why}", 400))
    return not why


def _judged(source: PublishedReport) -> PublishedReport:
    """Return a report with the gate's decision, which foreign rows do not change."""
    from conformance.reports.gate.admission import judge
    from conformance.reports.junit_import import without_rows

    if source.decision is not None:
        return source
    return replace(source, decision=judge(without_rows(source.report), datetime.now(timezone.utc), source.signer))


def _warn(source: PublishedReport) -> None:
    """Say on stderr that a published report is rejected by the gate."""
    from conformance.reports.plain_text import one_line

    if source.decision and source.decision.rejections:
        said = (
            f"{source.path}: the gate rejects it ({', '.join(source.decision.rejecting)}); its line on the page says so"
        )
        sys.stderr.write(f"{one_line(said, 400)}. See: conformance gate {one_line(str(source.path), 200)}\n")


def _conclusion(columns: Sequence[PageColumn], runs: int) -> str:
    """Return the last line: how many accelerators and runs the page has, and how many of them the gate rejects."""
    rejected = sum(bool(column.source.decision and column.source.decision.rejections) for column in columns)
    said = f"the gate rejects {rejected}" if rejected else "the gate rejects none"
    return f"{len(columns)} accelerator{'' if len(columns) == 1 else 's'}, {runs} run{'' if runs == 1 else 's'}: {said}"


def _source(path: Path, origin: ReportOrigin, arguments: argparse.Namespace) -> PublishedReport:
    """Return a report of the page, with its signer where a valid signature lies beside it.

    With allowed signers, the bytes of ``report.json`` are read once: what the page shows is what the signature covers.
    A signed report is judged at once: whether it may replace another one depends on the decision.
    """
    from conformance.reports.loading import load, read_report_file, report_json_in
    from conformance.reports.page.columns import PublishedReport

    file = report_json_in(path) if path.is_dir() else path
    if arguments.allowed_signers is None or file is None or file.suffix == ".jsonl":
        return PublishedReport(load(path), origin, path=path)
    read = read_report_file(file)
    report = read.report()
    source = PublishedReport(report, origin, _signer(read, report.accelerator.name, arguments), path=path)
    return _judged(source) if source.signer else source


def _signer(file: ReportFile, accelerator: str, arguments: argparse.Namespace) -> str:
    """Return the signer of the report; empty if no allowed signature verifies. The page then shows 'nobody'."""
    from conformance.reports.gate.signatures import check, signature_path
    from conformance.reports.gate.signers import bound, may_sign
    from conformance.reports.plain_text import one_line

    signature = check(file, None, arguments.allowed_signers, arguments.revoked_keys)
    if not signature.problem and arguments.signers is not None:
        signature = bound(signature, arguments.signers)
        if not may_sign(signature, accelerator):
            signature = replace(signature, problem=f"{signature.principal} may not sign for {accelerator!a}.")
    if signature.problem and signature_path(file.path).is_file():
        sys.stderr.write(f"{one_line(f'{file.path}: {signature.problem}')} The page says 'nobody'.\n")
    return "" if signature.problem else signature.principal
