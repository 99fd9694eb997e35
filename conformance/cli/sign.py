"""``conformance sign``: sign a report with an SSH key."""

from __future__ import annotations

import argparse
from pathlib import Path

SUMMARY = "Sign a report with an SSH key."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("report", metavar="REPORT", type=Path, help="a report.json, or the folder that holds it")
    parser.add_argument("--key", metavar="FILE", type=Path, required=True, help="an SSH key, such as ~/.ssh/id_ed25519")


def run(arguments: argparse.Namespace) -> int:
    from conformance.cli.gate import require
    from conformance.reports.gate.signatures import sign
    from conformance.reports.loading import read_report_file

    require(arguments.report)
    require(arguments.key)
    path = sign(read_report_file(arguments.report), arguments.key)
    print(f"{path}: send this file with the report, and give the reviewer the public key")
    return 0
