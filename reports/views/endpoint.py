"""Badge as the JSON that badge services request."""

from __future__ import annotations

import json

from conformance.reports.model import Report
from conformance.reports.views import badge

SUMMARY = "JSON for a badge service"


def render(report: Report, _width: int = 0) -> str:
    """Return the JSON that the service requests from its endpoint."""
    value = {
        "schemaVersion": 1,
        "label": badge.label(report),
        "message": badge.message(report),
        "color": badge.colour(report).lstrip("#"),
    }
    return json.dumps(value) + "\n"
