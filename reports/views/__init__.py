"""The views by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from conformance.errors import UnknownName
from conformance.reports.model import Report
from conformance.reports.report_json import to_json
from conformance.reports.views import badge, ctrf, junit, markdown, packed, summary, text

#: A view makes text of a report and a width in columns, which only terminals care for.
View = Callable[[Report, int], str]

VIEWS: Final[dict[str, View]] = {
    "text": lambda report, width: text.render(report, width) + "\n",
    "markdown": lambda report, _: markdown.render(report),
    "json": lambda report, _: to_json(report),
    "junit": lambda report, _: junit.render(report),
    "ctrf": lambda report, _: ctrf.render(report),
    "summary": lambda report, _: summary.render(report),
    "packed": lambda report, _: packed.pack(report),
    "badge": lambda report, _: badge.svg(report),
    "endpoint": lambda report, _: badge.endpoint(report),
}

#: The views that a report folder holds, by file name.
FILES: Final[dict[str, Callable[[Report], str]]] = {
    "report.json": to_json,
    "junit.xml": junit.render,
    "matrix.md": markdown.render,
}


def find_view(name: str) -> View:
    """The view of that name; an unknown name is an error with suggestions."""
    if name not in VIEWS:
        raise UnknownName("format", name, VIEWS)
    return VIEWS[name]
