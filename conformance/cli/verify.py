"""``conformance verify``: check the signature of a report."""

from __future__ import annotations

import argparse
from pathlib import Path

from conformance.cli.gate import add_signature_arguments

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
    add_signature_arguments(parser)
    add("--signature", metavar="FILE", type=Path, help="the signature (default: REPORT.sig)")


def run(arguments: argparse.Namespace) -> int:
    """Print the signer, or the problem with exit status 1."""
    from conformance.cli.gate import require, signature_of
    from conformance.reports.gate.signers import may_sign
    from conformance.reports.loading import read_report_file
    from conformance.reports.plain_text import one_line

    require(arguments.report)
    file = read_report_file(arguments.report)
    signature = signature_of(file, arguments)
    if signature.problem:
        print(signature.problem)
        return 1
    if arguments.signers is not None:
        name = file.report().accelerator.name
        if not may_sign(signature, name):
            print(f"{signature.principal} may not sign for {one_line(name, 60)!a}.")
            return 1
    print(f"{file.path}: signed by {signature.principal}")
    return 0
