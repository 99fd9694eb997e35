"""``conformance lint``: find contradictions in an accelerator's declaration, without a device."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from conformance.base.errors import UsageError

if TYPE_CHECKING:
    from conformance.accelerators.lint import LintFinding

SUMMARY = "Check an accelerator's declaration without a device."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="an accelerator; a name as for --accelerator")
    parser.add_argument("--capabilities", metavar="FILE", type=Path, help="a TOML declaration to check as well")


def run(arguments: argparse.Namespace) -> int:
    """Print the findings, errors first, and their counts in the last line. Exit status 1 means at least one error."""
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
    print(f"{arguments.name}: {_conclusion(findings)}")
    return 1 if any(finding.severity is LintSeverity.ERROR for finding in findings) else 0


def _conclusion(findings: Sequence[LintFinding]) -> str:
    """Return how many findings of each severity there are, and how to read a rule."""
    from conformance.accelerators.lint import LintSeverity

    if not findings:
        return "no contradiction found"
    counts = Counter(finding.severity for finding in findings)
    parts = [f"{n} {one.value}{'' if n == 1 else 's'}" for one in LintSeverity if (n := counts[one])]
    head = "" if counts[LintSeverity.ERROR] else "no error; "
    return f"{head}{', '.join(parts)}; see: conformance explain {findings[0].id}"
