"""Canonical report as JSON."""

from __future__ import annotations

from conformance.reports.model import Report
from conformance.reports.report_json import to_json

SUMMARY = "JSON, canonical"
FILE = "report.json"


def render(report: Report, _width: int = 0) -> str:
    """Return the text of ``report.json``."""
    return to_json(report)
