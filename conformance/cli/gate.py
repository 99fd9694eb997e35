"""``conformance gate``: decide whether a report is accepted, and print the reasons."""

from __future__ import annotations

import argparse
import gc
import re
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from conformance.base.errors import ConformanceError, JournalError, UsageError

if TYPE_CHECKING:
    from conformance.reports.gate.evidence import GateEvidence, SignatureCheck
    from conformance.reports.gate.manifests import Manifest
    from conformance.reports.loading import ReportFile
    from conformance.reports.model import Report
    from conformance.reports.profiles import Policy
    from conformance.reports.waivers.model import Waiver

SUMMARY = "Decide whether a report is accepted, and print the reasons."

CANNOT_JUDGE = 2


class CannotJudge(ConformanceError):
    """Failure to read an input of the gate. G01 in the message is the rule about reading."""

    exit_status = CANNOT_JUDGE

    def __init__(self, error: JournalError) -> None:
        super().__init__(f"G01 cannot judge: {error}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("report", metavar="REPORT", type=Path, nargs="?", help="a report.json or a report folder")
    add(
        "--profile",
        metavar="NAME",
        help="core, standard, inference, training, distributed or full (default: the run's own)",
    )
    add("--baseline", metavar="REPORT", type=Path, help="an earlier report that was accepted")
    add("--waivers", metavar="FILE", type=Path, help="the agreed waivers, a TOML file")
    add("--manifest", metavar="FILE", type=Path, help="judge by this manifest (default: the released manifest)")
    add("--allowed-signers", metavar="FILE", type=Path, help="allowed signers; the report then needs a signature")
    add_signature_arguments(parser)
    add("--signature", metavar="FILE", type=Path, help="the signature (default: REPORT.sig)")
    add("--accelerator", metavar="NAME", default="", help="name that the accelerator of the report must have")
    add("--fingerprint", metavar="SHA256", default="", help="fingerprint that the environment of the report must have")
    add("--challenge", metavar="NONCE", default="", help="the challenge that the run must have used")
    add("--format", metavar="FORMAT", default="text", help="text (default), json or markdown")
    add("-o", "--output", metavar="FILE", type=Path, help="write to FILE instead of the terminal")
    add("--explain", metavar="ID", help="explain a rule such as G07, or 'all' rules, and stop")


def run(arguments: argparse.Namespace) -> int:
    """Print the decision, which is the exit status too. With ``--explain`` print rules instead."""
    from conformance.cli.main import known_name
    from conformance.reports.gate.views import FORMATS

    if arguments.explain:
        return _explain(arguments.explain)
    render = FORMATS[known_name("format", arguments.format, FORMATS)]
    if arguments.report is None:
        raise UsageError("name a report: conformance gate REPORT. See: conformance gate --help")
    from conformance.reports.gate.rules import decide
    from conformance.reports.json_files import collector_paused

    try:
        with collector_paused():
            decision = decide(evidence(arguments))
            gc.freeze()  # the process ends soon; the collector must not scan a large report again
    except JournalError as error:
        raise CannotJudge(error) from None
    _write(render(decision), arguments.output)
    return int(decision.status)


def _explain(id: str) -> int:
    """Print the explanation of one rule or of all rules."""
    from conformance.reports.gate.rules import find_rule
    from conformance.reports.gate.views import explanation, explanations

    sys.stdout.write(explanations() if id == "all" else explanation(find_rule(id)))
    return 0


def _write(text: str, output: Path | None) -> None:
    """Write to the terminal, or atomically to a file."""
    if output is None:
        sys.stdout.write(text)
        return
    # This import loads every view and its libraries, which output to the terminal does not need.
    from conformance.reports.writer import write_text

    write_text(output, text)


def evidence(arguments: argparse.Namespace) -> GateEvidence:
    """Read every file that the user named, and return the evidence for the rules."""
    from conformance.base.suite_files import suite_files_sha256
    from conformance.reports.gate.evidence import GateEvidence
    from conformance.reports.gate.manifests import released_series

    for path in (arguments.report, arguments.baseline, arguments.waivers, arguments.manifest):
        require(path)
    report, signature = _report(arguments)
    baseline = _baseline(arguments.baseline, report) if arguments.baseline else None
    return GateEvidence(
        report=report,
        policy=_policy(arguments.profile, report),
        now=datetime.now(timezone.utc),
        manifest=_manifest(arguments.manifest, report),
        baseline=baseline,
        waivers=_waivers(arguments.waivers) if arguments.waivers else (),
        signature=signature,
        fingerprint=_fingerprint(arguments.fingerprint),
        challenge=_challenge(arguments.challenge),
        accelerator=arguments.accelerator,
        profile_is_named=bool(arguments.profile),
        suite_files=suite_files_sha256(),
        series=tuple(released_series(report.run.suite.version)),
    )


def require(path: Path | None) -> None:
    """Raise UsageError if the path does not exist. A missing file is a typing error, not unreadable evidence."""
    if path is not None and not path.exists():
        raise UsageError(
            f"there is no {path}. Name an existing file, or the folder of a run, such as conformance-report/cpu."
        )


def _fingerprint(text: str) -> str:
    """Return the fingerprint in lower case; UsageError if it is not a whole SHA-256."""
    if text and not re.fullmatch(r"[0-9a-fA-F]{64}", text):
        raise UsageError(f"--fingerprint has {len(text)} characters; expected the 64 hexadecimal digits of a SHA-256.")
    return text.lower()


def _challenge(nonce: str) -> str:
    from conformance.reports.challenge import checked_nonce

    return checked_nonce(nonce) if nonce else ""


def _report(arguments: argparse.Namespace) -> tuple[Report, SignatureCheck | None]:
    """Return the report, and the check of its signature if there are allowed signers. Both are of the same bytes."""
    if arguments.allowed_signers is None:
        for option in ("signature", "signers", "revoked_keys"):
            if getattr(arguments, option) is not None:
                name = option.replace("_", "-")
                raise UsageError(
                    f"--{name} needs --allowed-signers FILE: a signature is verified against allowed signers."
                )
        return _load(arguments.report), None
    from conformance.reports.loading import read_report_file

    file = read_report_file(arguments.report)
    found = signature_of(file, arguments)
    return file.report(), found


def signature_of(file: ReportFile, arguments: argparse.Namespace) -> SignatureCheck:
    """Return the check of a report's signature against the files that the user named."""
    from conformance.reports.gate.signatures import check
    from conformance.reports.gate.signers import bound

    for path in (arguments.allowed_signers, arguments.signers, arguments.revoked_keys):
        require(path)
    found = check(file, arguments.signature, arguments.allowed_signers, arguments.revoked_keys)
    return found if arguments.signers is None else bound(found, arguments.signers)


def add_signature_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options about signatures that several commands have, besides the file of allowed signers."""
    add = parser.add_argument
    add("--signers", metavar="FILE", type=Path, help="which signer may sign for which accelerators, a TOML file")
    add("--revoked-keys", metavar="FILE", type=Path, help="public keys, or a key revocation list of ssh-keygen")


def _baseline(path: Path, report: Report) -> Report:
    from conformance.reports.loading import MAX_CASES_TOGETHER, require_at_most

    baseline = _load(path)
    require_at_most(MAX_CASES_TOGETHER, [report, baseline])
    return baseline


def _load(path: Path) -> Report:
    from conformance.reports.loading import load

    return load(path)


def _waivers(path: Path) -> tuple[Waiver, ...]:
    from conformance.reports.waivers.file import read_waivers

    return read_waivers(path)


def _policy(profile: str | None, report: Report) -> Policy:
    """Return the named policy, or the one of the run's own profile."""
    from conformance.reports.profiles import find_policy

    if profile:
        return find_policy(profile)
    if not report.run.profile:
        raise UsageError("the report names no profile; name the profile to judge by, such as --profile training.")
    return find_policy(report.run.profile)


def _manifest(path: Path | None, report: Report) -> Manifest | None:
    from conformance.reports.gate.manifests import read_manifest, released

    return read_manifest(path) if path else released(report.run.suite.version, report.accelerator.torch)
