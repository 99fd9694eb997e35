"""Times in reports: ISO 8601 with a time zone. They are compared as times, because texts of two zones sort wrongly."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Final

#: Stands for a text that is no time, so that a run without a date is the oldest one.
NEVER: Final = datetime.min.replace(tzinfo=timezone.utc)


def moment(text: str) -> datetime | None:
    """Return a date with its time zone in UTC, or None if the text is none."""
    try:
        found = datetime.fromisoformat(text.removesuffix("Z") + "+00:00" * text.endswith("Z"))
        return found.astimezone(timezone.utc) if found.tzinfo else None
    except (ValueError, OverflowError):
        return None


def in_order(text: str) -> tuple[datetime, str]:
    """Return what times are sorted by. A text that is no time comes first."""
    return moment(text) or NEVER, text


def day(text: str) -> str:
    """Return the day in UTC, such as ``2026-11-25``; empty if the text is no time."""
    found = moment(text)
    return found.date().isoformat() if found else ""
