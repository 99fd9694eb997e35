"""Report in the Common Test Report Format (ctrf.io), for dashboards that read it."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Final

from conformance.reports.model import LONGEST_SECONDS, CaseRecord, Report
from conformance.reports.plain_text import one_line, plain
from conformance.reports.planned import PlannedCase
from conformance.reports.verdict import Outcome

SUMMARY = "JSON, Common Test Report Format"

_STATUS: Final = {Outcome.PASS: "passed", Outcome.SKIP: "skipped", Outcome.FAIL: "failed"}
SPEC: Final = "0.0.0"


def render(report: Report, _width: int = 0) -> str:
    """Return the document. Cases without a verdict are ``other``, so that no reader takes them for passes."""
    tests = [_judged(case) for case in report.cases] + [_lost(planned) for planned in report.accounting.unaccounted]
    results = {
        "tool": {"name": "accelerator-conformance", "version": one_line(report.run.suite.version)},
        "summary": _summary(report),
        "tests": tests,
        "environment": _environment(report),
    }
    document = {"reportFormat": "CTRF", "specVersion": SPEC, "results": results}
    return json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n"


def _summary(report: Report) -> dict[str, int]:
    """Return the counts and times that CTRF wants. Times are milliseconds since 1970."""
    counts = report.counts
    return {
        "tests": counts.planned,
        "passed": counts.passed,
        "failed": counts.failed,
        "pending": 0,
        "skipped": counts.skipped,
        "other": counts.lost,
        "start": _milliseconds(report.run.started),
        # A killed run has no end, and the format requires one.
        "stop": _milliseconds(report.run.finished or report.run.started),
    }


def _milliseconds(text: str) -> int:
    """Return the milliseconds since 1970; 0 for a text that is no date."""
    try:
        return int(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        return 0


def _judged(case: CaseRecord) -> dict[str, Any]:
    """Return the test of a case with a verdict. ``duration`` is in milliseconds."""
    test: dict[str, Any] = {
        "name": one_line(case.id) or "?",
        "status": _STATUS[case.outcome],
        "duration": round(min(max(case.seconds, 0.0), LONGEST_SECONDS) * 1000),
        "suite": [one_line(case.area)],
        "rawStatus": case.reason.value,
        "type": one_line(case.tier),
    }
    if case.message:
        test["message"] = plain(case.message)
    if case.metrics or case.axes:
        test["extra"] = {"axes": _clean(case.axes), "metrics": _clean(case.metrics)}
    return test


def _clean(members: Any) -> dict[str, Any]:
    return {one_line(name): one_line(one) if isinstance(one, str) else one for name, one in members.items()}


def _lost(planned: PlannedCase) -> dict[str, Any]:
    """Return the test of a planned case without a verdict."""
    return {
        "name": one_line(planned.id) or "?",
        "status": "other",
        "duration": 0,
        "suite": [one_line(planned.area)],
        "message": "planned, but there is no verdict",
    }


def _environment(report: Report) -> dict[str, Any]:
    """Return the environment. Names that CTRF does not know go into ``extra``."""
    return {
        "appName": one_line(report.accelerator.name),
        "extra": {"torch": one_line(report.accelerator.torch), **_clean(report.environment.facts)},
    }
