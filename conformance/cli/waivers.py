"""``conformance waivers``: check a waiver file, remove waivers that are no longer needed, or add a waiver."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from conformance.base.errors import UsageError
from conformance.reports.waivers.model import LARGEST_ERROR

if TYPE_CHECKING:
    from conformance.reports.waivers.model import Waiver

SUMMARY = "Check, prune or add waivers of known failures."

#: Days until a new waiver expires, unless --expires is given.
_DAYS = 90


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="check | prune | add", required=True)
    check = actions.add_parser("check", help="check the file, and with --report find waivers that are no longer needed")
    check.add_argument("file", metavar="FILE", type=Path, help="a waiver file")
    check.add_argument("--report", metavar="PATH", type=Path, help="a report to compare the waivers with")
    prune = actions.add_parser("prune", help="remove the waivers that a report shows to be no longer needed")
    prune.add_argument("file", metavar="FILE", type=Path, help="a waiver file")
    prune.add_argument("--report", metavar="PATH", type=Path, required=True, help="a report of a complete run")
    prune.add_argument("--dry-run", action="store_true", help="print what would be removed, without changing the file")
    _add_waiver_arguments(actions.add_parser("add", help="add a waiver to the file"))


def _add_waiver_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``waivers add``: one for each key of a waiver."""
    add = parser.add_argument
    add("file", metavar="FILE", type=Path, help="a waiver file; it is created if it does not exist")
    add("cases", metavar="CASE", nargs="+", help="case ids; * matches any text")
    add("--verdict", metavar="REASON", required=True, help="the reason of the failure to waive, such as wrong")
    add("--kind", metavar="KIND", required=True, help="hardware, not-yet, bug or flaky")
    add("--ticket", required=True, help="the ticket that tracks the failure")
    add("--reason", required=True, help="why the case fails, in one sentence")
    add("--owner", required=True, help="the person or team responsible for the waiver")
    add("--expires", metavar="DATE", help=f"a date such as 2026-12-31 (default: in {_DAYS} days; at most 180)")
    add(
        "--error",
        metavar="BUDGETS",
        type=float,
        default=LARGEST_ERROR,
        help=f"largest error to excuse, as a multiple of the error budget (default: {LARGEST_ERROR:g})",
    )
    add("--device", default="", help="only on devices whose name matches; * matches any text")


def run(arguments: argparse.Namespace) -> int:
    return {"check": _check, "prune": _prune, "add": _add}[arguments.action](arguments)


def _today() -> date:
    return datetime.now(timezone.utc).date()


def _check(arguments: argparse.Namespace) -> int:
    """Print the faults of the file. Exit status 1 means that there are some."""
    from conformance.cli.gate import require
    from conformance.reports.plain_text import one_line
    from conformance.reports.waivers.file import read_waivers

    require(arguments.file)
    waivers = read_waivers(arguments.file)
    faults = [*_own_faults(waivers), *(_against(arguments.report, waivers) if arguments.report else ())]
    for fault in faults:
        print(one_line(fault))
    if not faults:
        print(f"{arguments.file}: {len(waivers)} waiver{'' if len(waivers) == 1 else 's'}, no problem found")
    return 1 if faults else 0


def _own_faults(waivers: tuple[Waiver, ...]) -> Iterator[str]:
    for waiver in waivers:
        yield from (f"line {waiver.line}: the waiver of {waiver.name} {fault}" for fault in waiver.faults(_today()))


def _against(path: Path, waivers: tuple[Waiver, ...]) -> Iterator[str]:
    """Yield the waivers that the results of a run contradict, one sentence each."""
    from conformance.reports.loading import load
    from conformance.reports.waivers.applying import waiver_outcome

    applied = waiver_outcome(load(path), waivers, _today())
    yield from (f"{id} belongs to the mandatory core, which cannot be waived" for id in applied.core)
    yield from (
        f"line {waiver.line}: {id} passes, but it is waived as {waiver.verdict.value}"
        for id, waiver in applied.unexpected.items()
    )
    yield from (
        f"line {waiver.line}: {id} has a larger error than the {waiver.error:g} budgets that the waiver excuses"
        for id, waiver in applied.grown.items()
    )
    yield from (f"line {waiver.line}: the waiver of {waiver.name} matches no claimed case" for waiver in applied.idle)


def _prune(arguments: argparse.Namespace) -> int:
    """Remove the waivers that a complete run does not need. Comments and order of the file stay."""
    from conformance.cli.gate import require
    from conformance.reports.loading import load
    from conformance.reports.waivers import editing
    from conformance.reports.waivers.applying import waiver_outcome
    from conformance.reports.waivers.file import parse_waivers
    from conformance.reports.writer import write_text

    require(arguments.file)
    text = _read(arguments.file)
    waivers = parse_waivers(text.encode(), str(arguments.file))
    report = load(arguments.report)
    if report.run.invocation.selection or report.accounting.unaccounted:
        raise UsageError(
            "the report is of a partial run, so it cannot show that a waiver is not needed. Use one of a complete run."
        )
    applied = waiver_outcome(report, waivers, _today())
    needless = editing.needless(waivers, applied.idle, applied.unexpected)
    pruned = editing.removed(text, needless)
    _print_changes(needless, [id for id, waiver in applied.unexpected.items() if waiver not in needless])
    if needless and not arguments.dry_run:
        write_text(arguments.file, pruned)
    return 0


def _print_changes(needless: list[Waiver], passing: list[str]) -> None:
    """Print the removed waivers, and the passing cases of waivers that are needed elsewhere."""
    from conformance.reports.plain_text import one_line

    for waiver in needless:
        print(one_line(f"line {waiver.line}: the waiver of {waiver.name} is no longer needed"))
    for id in passing:
        print(one_line(f"{id} passes, but other cases still need its waiver: narrow the waiver by hand"))
    if not needless and not passing:
        print("every waiver is still needed")


def _read(path: Path) -> str:
    """Return the file's text. Raises ``JournalError`` if it is too large or not UTF-8."""
    from conformance.base.errors import JournalError
    from conformance.reports.json_files import read_capped
    from conformance.reports.waivers.file import MAX_BYTES

    try:
        return read_capped(path, MAX_BYTES).decode("utf-8")
    except UnicodeDecodeError:
        raise JournalError(f"{path} is not valid TOML: it is not UTF-8 text.") from None


def _add(arguments: argparse.Namespace) -> int:
    """Append a waiver to the file, which may not exist yet, and print it."""
    from conformance.reports.waivers import editing
    from conformance.reports.writer import write_text

    waiver = _waiver(arguments)
    # The same checks as `waivers check`, so the command adds no waiver that is invalid from the start.
    fault = next(waiver.faults(_today()), None)
    if fault:
        raise UsageError(f"the waiver of {waiver.name} {fault}.")
    before = _read(arguments.file) if arguments.file.exists() else ""
    write_text(arguments.file, editing.added(before, waiver))
    sys.stdout.write(editing.table(waiver))
    return 0


def _waiver(arguments: argparse.Namespace) -> Waiver:
    """Return the waiver that the arguments describe."""
    from conformance.cli.main import known_name
    from conformance.reports.verdict import Reason
    from conformance.reports.waivers.model import WAIVABLE, Waiver, WaiverKind

    return Waiver(
        cases=tuple(dict.fromkeys(arguments.cases)),
        verdict=Reason(known_name("verdict", arguments.verdict, [reason.value for reason in WAIVABLE])),
        kind=WaiverKind(known_name("kind", arguments.kind, [kind.value for kind in WaiverKind])),
        ticket=arguments.ticket,
        reason=arguments.reason,
        owner=arguments.owner,
        expires=_expiry(arguments.expires),
        device=arguments.device,
        error=arguments.error,
    )


def _expiry(text: str | None) -> date:
    """Return the day of expiry, by default ``_DAYS`` days from today."""
    if text is None:
        return _today() + timedelta(days=_DAYS)
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise UsageError(f"--expires {text}: expected a date such as 2026-12-31.") from None
