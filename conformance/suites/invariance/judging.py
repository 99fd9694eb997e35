"""Judgement of what was found in a kind of surrounding: a failure of a claim, or a report without one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from conformance.judging.finding import Refused
from conformance.reports.surroundings import OPERATORS, SMALLEST

from .surroundings import Change

#: Operators that a message names.
_NAMED = 12


def tell(
    check: Any,
    declaration: Any,
    case: Any,
    kind: str,
    found: Sequence[Change],
    count: int,
    *,
    ignored: Sequence[str] = (),
    empty: Sequence[str] = (),
) -> None:
    """Fail for a claim that does not hold; without a claim, refuse with the smallest surroundings."""
    check.that(not ignored, f"the declared mode is not on: {', '.join(ignored)} did not take the value")
    check.that(not empty, f"results are not finite, or the same for all rows: {', '.join(empty)}")
    check.metric(OPERATORS, count)
    check.metric("changed", len(found))
    for change in found:
        check.metric(f"{SMALLEST}{change.operator}", change.size)
    shown = ", ".join(map(str, found[:_NAMED])) + (f", and {len(found) - _NAMED} more" if len(found) > _NAMED else "")
    if found and not declaration.supports(case.requires[0]):
        raise Refused(f"bits change with the {kind}: {shown}")
    check.that(not found, f"bits change with the {kind}: {shown}")
