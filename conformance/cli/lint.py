"""``conformance lint``: find contradictions in an accelerator's declaration, without a device."""

from __future__ import annotations

import argparse
from pathlib import Path

from conformance.errors import UsageError

SUMMARY = "Check an accelerator's declaration without a device."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="an accelerator; a name as for --accelerator")
    parser.add_argument("--capabilities", metavar="FILE", type=Path, help="a TOML declaration to check as well")


def run(arguments: argparse.Namespace) -> int:
    """Print the findings. Exit status 1 means that at least one is an error; warnings do not count."""
    from conformance.accelerators.lint import LintSeverity, lint
    from conformance.accelerators.registry import resolve
    from conformance.process.trial import try_module
    from conformance.reports.plain_text import one_line

    file: Path | None = arguments.capabilities
    if file is not None and not file.is_file():
        raise UsageError(f"--capabilities: there is no file {file}.")
    try_module(arguments.name, members=True)
    findings = lint(resolve(arguments.name), file)
    for finding in findings:
        print(one_line(str(finding)))
    if not findings:
        print(f"{arguments.name}: no contradiction found")
    return 1 if any(finding.severity is LintSeverity.ERROR for finding in findings) else 0
