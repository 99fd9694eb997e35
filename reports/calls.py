"""Calls of operators in reports: the selector that names one, and the script that repeats it."""

from __future__ import annotations

import re
from typing import Final

#: Metrics of a failed case: the selector of the call that failed, and a short script that repeats it.
CALL: Final = "call"
SCRIPT: Final = "script"
#: Metric of a failed case: the operator whose call has raised, where the case is about something else.
REFUSING: Final = "refusing"
#: Metric of a skipped case: the cell of an operator that it calls and that the device does not claim.
NEEDS: Final = "needs"
#: Characters of the longest script in a report.
LONGEST_SCRIPT: Final = 12_000
_SELECTOR: Final = re.compile(r"\{[a-z]+=[A-Za-z0-9.-]{1,200}(?:,[a-z]+=[A-Za-z0-9.-]{1,200}){0,9}\}")


def is_selector(text: str) -> bool:
    """Return whether a text names calls by their fields, such as ``{form=out,arrangement=offset}``."""
    return _SELECTOR.fullmatch(text) is not None


def split(pattern: str) -> tuple[str, str]:
    """Return the id of a case and the selector behind it; an empty selector if there is none."""
    id, brace, rest = pattern.partition("{")
    return (id, brace + rest) if is_selector(brace + rest) else (pattern, "")


def fields_of(selector: str) -> dict[str, str]:
    """Return the fields of a selector; empty if it is none."""
    if not is_selector(selector):
        return {}
    return dict(part.split("=", 1) for part in selector[1:-1].split(","))
