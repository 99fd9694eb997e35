"""``conformance suggest``: print the declaration that matches the results of a run."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from conformance.reports.declaration.corrections import Correction, Corrections, Defect
    from conformance.reports.model import Report

SUMMARY = "Print the declaration that matches the results of a run."

#: Defects in the comments of a declaration; the report has all of them.
_MOST_SHOWN: Final = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path",
        metavar="PATH",
        type=Path,
        nargs="?",
        default=Path("conformance-report"),
        help="a report folder, a report.json, or a journal.jsonl (default: conformance-report)",
    )
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="write to FILE instead of the terminal")
    parser.add_argument("--force", action="store_true", help="overwrite FILE")


def run(arguments: argparse.Namespace) -> int:
    from conformance.accelerators.capabilities import VOCABULARY
    from conformance.cli.claims_text import check_target
    from conformance.reports.declaration.corrections import correct
    from conformance.reports.loading import load
    from conformance.reports.writer import write_text

    report = load(arguments.path)
    found = correct(report, core=[name for name, capability in VOCABULARY.items() if capability.core])
    if not found.corrections:
        print("\n".join([_nothing(report, found), *defect_lines(found)]))
        return 0
    check_target(arguments.output, force=arguments.force)
    following = next_command(report, arguments.output, arguments.path)
    text = suggestion(report, found, following)
    if arguments.output is None:
        sys.stdout.write(text)
        return 0
    write_text(arguments.output, text)
    print("\n".join([f"{arguments.output}: {summary(found)}", f"next: {following}"]))
    return 0


def _nothing(report: Report, found: Corrections) -> str:
    """Return why there is nothing to correct: no claim was tested, or no claim is false."""
    from conformance.reports.plain_text import one_line

    name = one_line(report.accelerator.name)
    if not found.judged:
        return f"This run of {name} tested no claim. Run the areas capabilities and operators."
    return (
        f"Nothing to correct: {found.judged} cases of {name} were judged against their claims, and no claim is false."
    )


def suggestion(report: Report, found: Corrections, following: str) -> str:
    """Return the text of the corrected declaration, with the changes in comments above and the next command below."""
    from conformance.cli.claims_text import comment, toml
    from conformance.reports.declaration.condensing import corrected_cells

    when = report.run.started or "an unknown date"
    lines = [
        comment(f"{report.accelerator.name}: the declaration of the run of {when}, {summary(found)}."),
        comment("The vendor is responsible for every claim: review the changes before you commit this file."),
        *change_lines(found),
        *defect_lines(found),
        "",
        toml(corrected_cells(report, found)),
        comment(f"next: {following}"),
    ]
    return "\n".join(lines) + "\n"


def summary(found: Corrections) -> str:
    """Return the numbers of corrected cells and of failures that no correction explains."""
    changed = f"{len(found.corrections)} cell{'s' if len(found.corrections) != 1 else ''} corrected"
    return changed + (
        f", {len(found.defects)} failure{'s' if len(found.defects) != 1 else ''} not corrected" if found.defects else ""
    )


def change_lines(found: Corrections) -> Iterator[str]:
    """Yield every correction, grouped by kind, with the case that shows it."""
    from conformance.cli.claims_text import comment, indented
    from conformance.reports.declaration.corrections import grouped

    for kind, corrections in grouped(found.corrections).items():
        yield comment()
        yield comment(kind.value)
        yield from (indented(_change(correction)) for correction in corrections[:_MOST_SHOWN])
        if len(corrections) > _MOST_SHOWN:
            yield indented(f"… and {len(corrections) - _MOST_SHOWN} more")


def _change(correction: Correction) -> str:
    case = "" if correction.case == correction.cell else f"  (case {correction.case})"
    return f"{correction.cell}{case}: {correction.evidence}"


def defect_lines(found: Corrections) -> Iterator[str]:
    """Yield comments on the defects, which no declaration can excuse."""
    from conformance.cli.claims_text import comment, indented

    if not found.defects:
        return
    yield comment()
    yield comment("not corrected, because a bug is not a capability: fix it, or waive it")
    yield from (indented(_defect(defect)) for defect in found.defects[:_MOST_SHOWN])
    if len(found.defects) > _MOST_SHOWN:
        yield indented(f"… and {len(found.defects) - _MOST_SHOWN} more; see: conformance report")


def _defect(defect: Defect) -> str:
    return f"{defect.case}: {defect.reason.value}: {defect.message}"


def next_command(report: Report, output: Path | None, path: Path) -> str:
    """Return the next command for the user: save the suggestion, or run with it."""
    if output is None:
        return shlex.join(["conformance", "suggest", str(path), "-o", "capabilities.toml"])
    command = [
        "pytest",
        f"--accelerator={report.accelerator.spec or report.accelerator.name}",
        f"--capabilities={output}",
    ]
    if report.run.strictness != "ci":  # the default of --strictness
        command.append(f"--strictness={report.run.strictness}")
    return shlex.join(command)
