"""``conformance sign``: sign a report with an SSH key."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from conformance.base.errors import UsageError

_KEY = "an SSH key, such as ~/.ssh/id_ed25519; to make one: ssh-keygen -t ed25519 -f FILE"
SUMMARY = "Sign a report with an SSH key."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("report", metavar="REPORT", type=Path, help="a report.json, or the folder that holds it")
    parser.add_argument("--key", metavar="FILE", type=Path, required=True, help=_KEY)


def make_key_command(key: Path) -> str:
    """Return the command that makes a key in a file, and its public key beside it."""
    # A public key may be given; its private key then has the name without .pub.
    private = key.with_suffix("") if key.suffix == ".pub" else key
    return shlex.join(["ssh-keygen", "-t", "ed25519", "-f", str(private)])


def run(arguments: argparse.Namespace) -> int:
    from conformance.cli.gate import require
    from conformance.reports.gate.signatures import sign
    from conformance.reports.loading import read_report_file

    require(arguments.report)
    if not arguments.key.exists():
        raise UsageError(f"there is no key {arguments.key}.\n  make one: {make_key_command(arguments.key)}")
    path = sign(read_report_file(arguments.report), arguments.key)
    public = arguments.key if arguments.key.suffix == ".pub" else Path(f"{arguments.key}.pub")
    print(f"{path}: send this file with the report, and give the reviewer the public key {public}")
    return 0
