"""Badge as an SVG picture: the largest profile that is fully green, and the breadth of the claims."""

from __future__ import annotations

from typing import Final
from xml.sax.saxutils import escape

from conformance.reports.model import Report
from conformance.reports.plain_text import one_line

SUMMARY = "SVG picture of the profile"

_GREEN, _RED, _GREY = "#2e7d32", "#c62828", "#616161"
#: Mean width of a letter. The text is squeezed or stretched to the width that is reserved for it.
_LETTER: Final = 6.6
#: Pixels beside the text, both sides together.
_PADDING: Final = 10


def label(report: Report) -> str:
    """Return the left text: the accelerator's name."""
    return one_line(report.accelerator.name, 40) or "accelerator"


def message(report: Report) -> str:
    """Return the right text. A partial run earns no profile, and the badge says that it was partial."""
    if report.run.invocation.selection:
        return "partial run"
    if report.badge:
        return report.profile_text
    counts = report.counts
    return f"{counts.failed} failing" if counts.failed else "incomplete" if counts.lost else "no profile"


def colour(report: Report) -> str:
    if report.badge:
        return _GREEN
    return _RED if report.counts.failed and not report.run.invocation.selection else _GREY


def render(report: Report, _width: int = 0) -> str:
    """Return the picture, with its text as a title for screen readers."""
    left, right = label(report), message(report)
    widths = [round(len(text) * _LETTER) + _PADDING for text in (left, right)]
    whole = sum(widths)
    title = escape(f"{left}: {right}", {'"': "&quot;"})
    texts = "".join(
        f'<text x="{x}" y="14" textLength="{width - _PADDING}" lengthAdjust="spacingAndGlyphs">{escape(text)}</text>'
        for x, width, text in ((widths[0] / 2, widths[0], left), (widths[0] + widths[1] / 2, widths[1], right))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{whole}" height="20" role="img" aria-label="{title}">'
        f"<title>{title}</title>"
        f'<rect width="{whole}" height="20" rx="3" fill="#444"/>'
        f'<path fill="{colour(report)}" '
        f'd="M{widths[0]} 0h{widths[1] - 3}a3 3 0 0 1 3 3v14a3 3 0 0 1-3 3H{widths[0]}z"/>'
        f'<g fill="#fff" text-anchor="middle" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">{texts}</g>'
        "</svg>\n"
    )
