"""A comparison as text, JSON and Markdown."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final

from conformance.reports.comparing import Change, Comparison
from conformance.reports.plain_text import markdown, one_line

_NOTHING: Final = "–"
#: More rows than this say nothing that the counts do not; JSON has them all.
_MOST_ROWS: Final = 2_000


def text(found: Comparison) -> str:
    """A line for each difference, and counts at the end."""
    return "\n".join(_lines(found)) + "\n"


def _lines(found: Comparison) -> Iterator[str]:
    yield f"before: {one_line(found.before)}"
    yield f"now:    {one_line(found.now)}"
    for case in found.cases[:_MOST_ROWS]:
        yield f"{case.change.value:<9} {one_line(case.id)}: {case.before or _NOTHING} → {case.now or _NOTHING}"
    yield from _more(len(found.cases))
    for claim in found.claims[:_MOST_ROWS]:
        before, now = one_line(claim.before) or _NOTHING, one_line(claim.now) or _NOTHING
        yield f"claim     {one_line(claim.cell)}: {before} → {now}"
    yield from _more(len(found.claims))
    yield summary(found)


def _more(number: int) -> Iterator[str]:
    if number > _MOST_ROWS:
        yield f"… and {number - _MOST_ROWS} more; --format json has them all"


def summary(found: Comparison) -> str:
    """The counts of what changed, in a sentence."""
    counts = Counter(case.change for case in found.cases)
    parts = [f"{counts[change]} {change.value}" for change in Change if counts[change]]
    claims = f"{len(found.claims)} claim{'' if len(found.claims) == 1 else 's'} changed"
    return ", ".join([*parts, f"{found.same} the same", claims])


def as_json(found: Comparison) -> str:
    """Everything, for programs."""
    value: dict[str, Any] = {"schema": 1, **asdict(found), "differs": found.differs}
    value["cases"] = [{**asdict(case), "change": case.change.value} for case in found.cases]
    return json.dumps(value, indent=1) + "\n"


def as_markdown(found: Comparison) -> str:
    """Tables, for a pull request."""
    head = [f"Before: {markdown(found.before)}", f"Now: {markdown(found.now)}", summary(found)]
    cases = [[one.change.value, markdown(one.id), one.before, one.now] for one in found.cases[:_MOST_ROWS]]
    claims = [["claim", *map(markdown, (one.cell, one.before, one.now))] for one in found.claims[:_MOST_ROWS]]
    rows = [f"| {' | '.join(cell or _NOTHING for cell in row)} |" for row in (*cases, *claims)]
    table = ["| change | case or cell | before | now |", "| --- | --- | --- | --- |", *rows] if rows else []
    return "\n\n".join(head) + "\n\n" + "\n".join(table) + ("\n" if table else "")


FORMATS: Final[Mapping[str, Callable[[Comparison], str]]] = {"text": text, "json": as_json, "markdown": as_markdown}
