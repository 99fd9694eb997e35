"""Report as the summary of a CI job: failures first, cut to the size that GitHub shows."""

from __future__ import annotations

from collections.abc import Iterator

from conformance.reports.matrix import failures
from conformance.reports.model import CaseRecord, Report
from conformance.reports.plain_text import SUMMARY_BYTES, markdown, one_line, within
from conformance.reports.views import markdown as markdown_view

SUMMARY = "Markdown for the summary of a CI job"

_LONGEST_MESSAGE = 300


def render(report: Report, _width: int = 0) -> str:
    """Return the summary in Markdown."""
    failed, lost = failures(report), report.accounting.unaccounted
    mark = "❌" if failed or lost or report.exit_status() else "✅"
    counts = report.counts
    name = markdown(one_line(report.accelerator.name, 100))
    head = (
        f"## {mark} Conformance of {name}\n\n"
        f"pass {counts.passed} · skip {counts.skipped} · fail {counts.failed} · no verdict {counts.lost} · "
        f"verified {counts.verified} · profile {report.profile_text}\n"
    )
    return within(SUMMARY_BYTES, head, _lines(report, failed))


def _lines(report: Report, failed: tuple[CaseRecord, ...]) -> Iterator[str]:
    """Yield the sections, the most urgent first, because the summary may be cut at its end."""
    if failed:
        yield f"\n### Failures: {len(failed)}\n\n| case | reason | message |\n| --- | --- | --- |\n"
        for case in failed:
            text = markdown(one_line(case.message, _LONGEST_MESSAGE))
            yield f"| {markdown(case.id)} | {case.reason.value} | {text} |\n"
    if lost := report.accounting.unaccounted:
        yield f"\n### Planned without a verdict: {len(lost)}\n\n"
        yield from (f"- {markdown(planned.id)}\n" for planned in lost)
    yield f"\n### Matrix\n\n{markdown_view.matrix(report)}\n"
    if kernels := markdown_view.kernels(report):
        yield f"\n{kernels}\n"
    yield f"\n{markdown_view.reasons(report)}\n"
