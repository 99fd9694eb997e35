"""``conformance waivers``: check a waiver file, take out what is no longer needed, and add one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from conformance.errors import UsageError

if TYPE_CHECKING:
    from conformance.reports.waivers.model import Waiver

SUMMARY = "Check, prune or add waivers of known failures."

_DAYS = 90


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="check | prune | add", required=True)
    check = actions.add_parser("check", help="tell what is wrong with the file, and with a report what is stale in it")
    check.add_argument("file", metavar="FILE", type=Path, help="a waiver file")
    check.add_argument("--report", metavar="PATH", type=Path, help="a report to hold the waivers against")
    prune = actions.add_parser("prune", help="take out the waivers that a report shows to be no longer needed")
    prune.add_argument("file", metavar="FILE", type=Path, help="a waiver file")
    prune.add_argument("--report", metavar="PATH", type=Path, required=True, help="a report of a complete run")
    prune.add_argument("--dry-run", action="store_true", help="tell what would go, and leave the file as it is")
    add_one(actions.add_parser("add", help="add a waiver to the file"))


def add_one(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("file", metavar="FILE", type=Path, help="a waiver file; it is made if it is not there")
    add("cases", metavar="CASE", nargs="+", help="ids of cases; * is any text")
    add("--verdict", metavar="REASON", required=True, help="the one reason that is waived, such as wrong")
    add("--kind", metavar="KIND", required=True, help="hardware, not-yet, bug or flaky")
    add("--ticket", required=True, help="where it is tracked")
    add("--reason", required=True, help="why it fails, in a sentence")
    add("--owner", required=True, help="who answers for it")
    add("--expires", metavar="DAY", help=f"such as 2026-12-31 (default: in {_DAYS} days; at most 180)")
    add("--device", default="", help="only on devices whose name matches; * is any text")


def run(arguments: argparse.Namespace) -> int:
    return {"check": _check, "prune": _prune, "add": _add}[arguments.action](arguments)


def _today() -> date:
    return datetime.now(timezone.utc).date()


def _check(arguments: argparse.Namespace) -> int:
    from conformance.cli.gate import require
    from conformance.reports.plain_text import one_line
    from conformance.reports.waivers.file import read_waivers

    require(arguments.file)
    waivers = read_waivers(arguments.file)
    faults = [*_own_faults(waivers), *(_against(arguments.report, waivers) if arguments.report else ())]
    for fault in faults:
        print(one_line(fault))
    if not faults:
        print(f"{arguments.file}: {len(waivers)} waiver{'' if len(waivers) == 1 else 's'}, nothing wrong")
    return 1 if faults else 0


def _own_faults(waivers: tuple[Waiver, ...]) -> Iterator[str]:
    for waiver in waivers:
        yield from (f"line {waiver.line}: the waiver of {waiver.name} {fault}" for fault in waiver.faults(_today()))


def _against(path: Path, waivers: tuple[Waiver, ...]) -> Iterator[str]:
    """What a run shows of the waivers."""
    from conformance.reports.loading import load
    from conformance.reports.waivers.applying import waiver_outcome

    settled = waiver_outcome(load(path), waivers, _today())
    yield from (f"{id}: of the mandatory core, which cannot be waived" for id in settled.core)
    yield from (
        f"line {waiver.line}: {id} passes, yet it is waived as {waiver.verdict.value}"
        for id, waiver in settled.unexpected.items()
    )
    yield from (f"line {one.line}: the waiver of {one.name} matches no case that is claimed" for one in settled.idle)


def _prune(arguments: argparse.Namespace) -> int:
    from conformance.cli.gate import require
    from conformance.reports.loading import load
    from conformance.reports.waivers import editing
    from conformance.reports.waivers.applying import waiver_outcome
    from conformance.reports.waivers.file import parse_waivers
    from conformance.reports.writer import write_text

    require(arguments.file)
    data = _text(arguments.file)
    waivers = parse_waivers(data.encode(), str(arguments.file))
    report = load(arguments.report)
    if report.run.invocation.selection or report.accounting.unaccounted:
        raise UsageError("the report is of a partial run, which cannot show that a waiver is no longer needed.")
    settled = waiver_outcome(report, waivers, _today())
    gone = editing.needless(waivers, settled.idle, settled.unexpected)
    text = editing.removed(data, gone)
    _tell(gone, [id for id, waiver in settled.unexpected.items() if waiver not in gone])
    if gone and not arguments.dry_run:
        write_text(arguments.file, text)
    return 0


def _tell(gone: list[Waiver], passing: list[str]) -> None:
    from conformance.reports.plain_text import one_line

    for waiver in gone:
        print(one_line(f"line {waiver.line}: the waiver of {waiver.name} goes"))
    for id in passing:
        print(one_line(f"{id} passes under a waiver that others still need: narrow it by hand"))
    if not gone and not passing:
        print("every waiver is still needed")


def _text(path: Path) -> str:
    from conformance.errors import JournalError
    from conformance.reports.json_files import read_capped
    from conformance.reports.waivers.file import MAX_BYTES

    try:
        return read_capped(path, MAX_BYTES).decode("utf-8")
    except UnicodeDecodeError:
        raise JournalError(f"{path} is not valid TOML: it is not UTF-8 text.") from None


def _add(arguments: argparse.Namespace) -> int:
    from conformance.reports.waivers import editing
    from conformance.reports.writer import write_text

    waiver = _waiver(arguments)
    fault = next(waiver.faults(_today()), None)
    if fault:
        raise UsageError(f"the waiver of {waiver.name} {fault}.")
    before = _text(arguments.file) if arguments.file.exists() else ""
    write_text(arguments.file, editing.added(before, waiver))
    sys.stdout.write(editing.table(waiver))
    return 0


def _waiver(arguments: argparse.Namespace) -> Waiver:
    from conformance.cli.main import known_name
    from conformance.reports.verdict import Reason
    from conformance.reports.waivers.model import WAIVABLE, Waiver, WaiverKind

    return Waiver(
        cases=tuple(dict.fromkeys(arguments.cases)),
        verdict=Reason(known_name("verdict", arguments.verdict, [one.value for one in WAIVABLE])),
        kind=WaiverKind(known_name("kind", arguments.kind, [one.value for one in WaiverKind])),
        ticket=arguments.ticket,
        reason=arguments.reason,
        owner=arguments.owner,
        expires=_day(arguments.expires),
        device=arguments.device,
    )


def _day(text: str | None) -> date:
    if text is None:
        return _today() + timedelta(days=_DAYS)
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise UsageError(f"--expires {text}: expected a day, such as 2026-12-31.") from None
