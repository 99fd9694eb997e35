"""``conformance import``: add the results of another suite to a report, as rows marked as imported."""

from __future__ import annotations

import argparse
from pathlib import Path

SUMMARY = "Import the results of another suite from JUnit XML."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("file", metavar="JUNIT", type=Path, help="a JUnit XML file")
    add("-o", "--output", metavar="FILE", type=Path, required=True, help="the report to write")
    add("--area-from", metavar="RULE", default="path", help="path (default), suite, or one area name for all cases")
    add("--into", metavar="REPORT", type=Path, help="add the rows to this report of the same accelerator")
    add(
        "--accelerator",
        metavar="NAME",
        default="imported",
        help="the accelerator that was tested, if --into is not given",
    )


def run(arguments: argparse.Namespace) -> int:
    from conformance.cli.gate import require
    from conformance.reports.junit_import import add_rows, area_of, import_junit
    from conformance.reports.loading import load
    from conformance.reports.report_json import to_json
    from conformance.reports.writer import write_text

    require(arguments.file)
    require(arguments.into)
    report = import_junit(arguments.file, area_of(arguments.area_from), arguments.accelerator)
    counts = report.counts
    if arguments.into:
        report = add_rows(load(arguments.into), report)
    write_text(arguments.output, to_json(report))
    print(f"{arguments.output}: imported pass {counts.passed}, skip {counts.skipped}, fail {counts.failed}")
    return 0
