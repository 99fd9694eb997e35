"""Report as a file for ``--case-file``: the ids of the failed cases, to run them again."""

from __future__ import annotations

from conformance.reports.matrix import failures
from conformance.reports.model import Report
from conformance.reports.plain_text import one_line
from conformance.reports.repro import is_repeatable

SUMMARY = "ids of the failed cases, for --case-file"
FILE = "failed.txt"


def render(report: Report, _width: int = 0) -> str:
    """Return a comment with the run's name, and one id per line. An id that no suite can have is left out."""
    failed = [case.id for case in failures(report) if is_repeatable(case.id)]
    head = f"# failed: {len(failed)}; run {one_line(report.run.id, 40)} of {one_line(report.accelerator.name, 40)}"
    return "\n".join([head, *failed]) + "\n"
