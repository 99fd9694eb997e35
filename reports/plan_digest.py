"""Hashes that name a plan and a declaration, made by those who write them and made again by those who doubt them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conformance.reports.model import PlannedRecord

#: Between the parts of a line, and between those of a part: signs that no id has.
_PART, _ITEM = "\x1f", "\x1e"
_FLAGS = {(False, False): "00", (False, True): "01", (True, False): "10", (True, True): "11"}


def plan_sha256(suite: str, planned: Iterable[PlannedRecord]) -> str:
    """A hash of what a suite of this version plans: everything that is said of each case, in any order."""
    rows = list(planned)
    text = "\n".join([suite, *sorted([_line(one) for one in rows])])
    if not _is_unambiguous(text, rows):
        # A stranger's ids may hold our separators, and must not look like cases that are not there.
        text = json.dumps([suite, sorted(_line(one).split(_PART) for one in rows), len(rows)])
    return hashlib.sha256(text.encode("utf-8", errors="surrogatepass")).hexdigest()


def _line(one: PlannedRecord) -> str:
    axes = one.axes
    said = _ITEM.join([*axes, *axes.values()]) if axes else ""
    flags = _FLAGS[one.adaptive, one.in_reference]
    return _PART.join((one.id, one.area, one.tier, one.level, flags, said, *one.requires))


def _is_unambiguous(text: str, rows: Sequence[PlannedRecord]) -> bool:
    """Whether the text has as many separators as were put between its parts, and so none inside of them."""
    parts = 5 * len(rows) + sum([len(one.requires) for one in rows])
    items = sum([2 * len(one.axes) - 1 for one in rows if one.axes])
    return (text.count("\n"), text.count(_PART), text.count(_ITEM)) == (len(rows), parts, items)


def declaration_sha256(rows: Iterable[Sequence[str | None]]) -> str:
    """A hash of written claims: cell, state, detail or None, and reason of each, sorted by cell."""
    return hashlib.sha256(json.dumps([list(row) for row in rows]).encode()).hexdigest()
