"""``conformance verify``: check the signature of a report."""

from __future__ import annotations

import argparse
from pathlib import Path

SUMMARY = "Check the signature of a report."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("report", metavar="REPORT", type=Path, help="a report.json, or the folder that holds it")
    add(
        "--allowed-signers",
        metavar="FILE",
        type=Path,
        required=True,
        help="allowed signers, in the format of ssh-keygen",
    )
    add("--signature", metavar="FILE", type=Path, help="the signature (default: REPORT.sig)")


def run(arguments: argparse.Namespace) -> int:
    """Print the signer, or the problem with exit status 1."""
    from conformance.cli.gate import require
    from conformance.reports.gate.signatures import check
    from conformance.reports.loading import read_report_file

    require(arguments.report)
    require(arguments.allowed_signers)
    file = read_report_file(arguments.report)
    signature = check(file, arguments.signature, arguments.allowed_signers)
    print(signature.problem or f"{file.path}: signed by {signature.principal}")
    return 1 if signature.problem else 0
