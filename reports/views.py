"""The views by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from conformance.errors import UnknownName
from conformance.reports import junit_view, markdown_view, terminal_view
from conformance.reports.model import Report, to_json

VIEWS: Final[dict[str, Callable[[Report], str]]] = {
    "text": lambda report: terminal_view.render(report) + "\n",
    "markdown": markdown_view.render,
    "json": to_json,
    "junit": junit_view.render,
}

#: The views that a report folder holds, by file name.
FILES: Final = {"report.json": "json", "junit.xml": "junit", "matrix.md": "markdown"}


def view(name: str, report: Report) -> str:
    """The report in the named form."""
    if name not in VIEWS:
        raise UnknownName("format", name, VIEWS)
    return VIEWS[name](report)
