"""Documents that are almost right: an honest one with a few values put where they do not belong."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Final

from tests.reports.gate import world

#: Asks for a number from 0 up to and without the given one.
Draw = Callable[[int], int]

TRACES: Final = ("\x00", "<script>alert(1)</script>", "../../etc/passwd", "\x1b[31m", "\u202e", "\ud800", "a" * 300, "")
ODD: Final[tuple[Any, ...]] = (
    None, True, False, 0, -1, 1.5, -0.0, 1e308, 2**63, 2**64, 10**400, float("inf"), float("nan"),
    *TRACES, "pass", "skip", "fail", "native", "waived", "waiver-stale", "wrong", "unsupported", "core", "*", "[",
    "a[b", "operators.*[float32-training]", "9999-12-31T23:59:59+00:00", "0001-01-01T00:00:00+23:59",
    "2026-06-01T00:00:00Z",
    [], {}, [[]], [{}], {"": ""}, ["a"] * 40, {str(n): n for n in range(40)}, [[[[[[[[]]]]]]]], {"a": {"b": {"c": {}}}},
)  # fmt: skip


def honest(packed: bool = False) -> Any:
    """An honest report's JSON value."""
    if not packed:
        return world.plain(world.honest())
    import json

    from conformance.reports.views.packed import render as pack

    return json.loads(pack(world.honest()))


def mutated(document: Any, draw: Draw) -> Any:
    """A copy of the document with one to four changes."""
    return changed(copy.deepcopy(document), draw)


def changed(document: Any, draw: Draw) -> Any:
    """The document itself after one to four changes: a value replaced, dropped, doubled, added, or a name changed."""
    for _ in range(1 + draw(4)):
        _change(document, draw)
    return document


def _change(document: Any, draw: Draw) -> None:
    place = document
    for _ in range(draw(6)):
        inner = list(place.values()) if isinstance(place, dict) else place
        deeper = [one for one in inner if isinstance(one, (dict, list)) and one]
        if not deeper:
            break
        place = deeper[draw(len(deeper))]
    odd = copy.deepcopy(ODD[draw(len(ODD))])
    if isinstance(place, dict):
        _change_object(place, odd, draw)
    else:
        _change_list(place, odd, draw)


def _change_object(place: dict[str, Any], odd: Any, draw: Draw) -> None:
    names = list(place)
    name = names[draw(len(names))] if names else "x"
    action = draw(4)
    if action == 0:
        place.pop(name, None)
    elif action == 1:
        place[TRACES[draw(len(TRACES))]] = odd
    elif action == 2 and names:
        place[name] = place[names[draw(len(names))]]
    else:
        place[name] = odd


def _change_list(place: list[Any], odd: Any, draw: Draw) -> None:
    if not place:
        place.append(odd)
        return
    index, action = draw(len(place)), draw(4)
    if action == 0:
        place.pop(index)
    elif action == 1:
        place.append(copy.deepcopy(place[index]))
    elif action == 2:
        place.insert(index, odd)
    else:
        place[index] = odd
