"""``conformance verify``: check a report's signature."""

from __future__ import annotations

import argparse
from pathlib import Path

SUMMARY = "Check the signature of a report."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("report", metavar="REPORT", type=Path, help="a report.json")
    add("--allowed-signers", metavar="FILE", type=Path, required=True, help="who may sign, as ssh-keygen reads it")
    add("--signature", metavar="FILE", type=Path, help="the signature (default: REPORT.sig)")


def run(arguments: argparse.Namespace) -> int:
    from conformance.cli.gate import require
    from conformance.reports.gate.signatures import check

    require(arguments.report)
    require(arguments.allowed_signers)
    found = check(arguments.report, arguments.signature, arguments.allowed_signers)
    print(found.problem or f"{arguments.report}: signed by {found.principal}")
    return 1 if found.problem else 0
