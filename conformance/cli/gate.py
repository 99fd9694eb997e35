"""``conformance gate``: whether a report may be accepted, and why not."""

from __future__ import annotations

import argparse
import gc
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from conformance.errors import ConformanceError, JournalError, UsageError

if TYPE_CHECKING:
    from conformance.reports.gate.evidence import GateEvidence, SignatureCheck
    from conformance.reports.gate.manifests import Manifest
    from conformance.reports.model import Report
    from conformance.reports.profiles import Policy
    from conformance.reports.waivers.model import Waiver

SUMMARY = "Decide whether a report is accepted, and say why not."

CANNOT_JUDGE = 2


class CannotJudge(ConformanceError):
    """Something the gate needs cannot be read. It carries the id of the rule about reading."""

    exit_status = CANNOT_JUDGE

    def __init__(self, error: JournalError) -> None:
        super().__init__(f"G01 cannot judge: {error}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("report", metavar="REPORT", type=Path, nargs="?", help="a report.json, or a report folder")
    add("--profile", metavar="NAME", help="core, inference, training, distributed or full (default: the run's own)")
    add("--baseline", metavar="REPORT", type=Path, help="a report that was accepted before")
    add("--waivers", metavar="FILE", type=Path, help="the waivers that were agreed to, as TOML")
    add("--manifest", metavar="FILE", type=Path, help="judge by this manifest (default: the released one)")
    add("--allowed-signers", metavar="FILE", type=Path, help="who may sign; the report then needs a signature")
    add("--signature", metavar="FILE", type=Path, help="the signature (default: REPORT.sig)")
    add("--fingerprint", metavar="SHA256", default="", help="the environment that the report has to come from")
    add("--challenge", metavar="NONCE", default="", help="the challenge that the run has to be made with")
    add("--format", metavar="FORMAT", default="text", help="text (default), json or markdown")
    add("-o", "--output", metavar="FILE", type=Path, help="write to FILE instead of the terminal")
    add("--explain", metavar="ID", help="tell what a rule asks, such as G07, and stop; 'all' tells all")


def run(arguments: argparse.Namespace) -> int:
    from conformance.cli.main import known_name
    from conformance.reports.gate.views import FORMATS

    if arguments.explain:
        return _explain(arguments.explain)
    form = FORMATS[known_name("format", arguments.format, FORMATS)]
    if arguments.report is None:
        raise UsageError("name a report: conformance gate REPORT. See: conformance gate --help")
    from conformance.reports.gate.rules import decide
    from conformance.reports.json_files import collector_paused

    try:
        with collector_paused():
            decision = decide(evidence(arguments))
            gc.freeze()  # the command ends with its verdict: nobody looks through the report for garbage any more
    except JournalError as error:
        raise CannotJudge(error) from None
    _write(form(decision), arguments.output)
    return int(decision.status)


def _explain(id: str) -> int:
    from conformance.reports.gate.rules import find_rule
    from conformance.reports.gate.views import explanation, explanations

    sys.stdout.write(explanations() if id == "all" else explanation(find_rule(id)))
    return 0


def _write(text: str, output: Path | None) -> None:
    if output is None:
        sys.stdout.write(text)
        return
    # Brings all views and what they need along, for which nobody should wait who only reads the answer.
    from conformance.reports.writer import write_text

    write_text(output, text)


def evidence(arguments: argparse.Namespace) -> GateEvidence:
    """Everything that was named, read."""
    from conformance.reports.gate.evidence import GateEvidence

    for path in (arguments.report, arguments.baseline, arguments.waivers, arguments.manifest):
        require(path)
    report = _load(arguments.report)
    return GateEvidence(
        report=report,
        policy=_policy(arguments.profile, report),
        now=datetime.now(timezone.utc),
        manifest=_manifest(arguments.manifest, report),
        baseline=_load(arguments.baseline) if arguments.baseline else None,
        waivers=_waivers(arguments.waivers) if arguments.waivers else (),
        signature=_signature(arguments),
        fingerprint=arguments.fingerprint,
        challenge=_challenge(arguments.challenge),
    )


def require(path: Path | None) -> None:
    """Raise UsageError for a path that leads nowhere: that is a slip of the one who typed it."""
    try:
        missing = path is not None and not path.exists()
    except ValueError:
        missing = True
    if missing:
        raise UsageError(f"there is no {path}.")


def _challenge(nonce: str) -> str:
    from conformance.reports.challenge import checked_nonce

    return checked_nonce(nonce) if nonce else ""


def _load(path: Path) -> Report:
    from conformance.reports.loading import load

    return load(path)


def _waivers(path: Path) -> tuple[Waiver, ...]:
    from conformance.reports.waivers.file import read_waivers

    return read_waivers(path)


def _policy(profile: str | None, report: Report) -> Policy:
    from conformance.reports.profiles import find_policy

    if profile:
        return find_policy(profile)
    if not report.run.profile:
        raise UsageError("the run had no profile of its own; name the one to judge by: --profile training")
    return find_policy(report.run.profile)


def _manifest(path: Path | None, report: Report) -> Manifest | None:
    from conformance.reports.gate.manifests import read_manifest, released

    return read_manifest(path) if path else released(report.run.suite.version, report.accelerator.torch)


def _signature(arguments: argparse.Namespace) -> SignatureCheck | None:
    if arguments.allowed_signers is None:
        if arguments.signature is not None:
            raise UsageError("--signature needs --allowed-signers: a signature says nothing unless somebody may sign.")
        return None
    from conformance.reports.gate.signatures import check

    require(arguments.allowed_signers)
    return check(arguments.report, arguments.signature, arguments.allowed_signers)
