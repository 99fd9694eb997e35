"""Compact form of the page's data block: what follows from something else is left out, and the rest is text.

``expanded`` in cases.js is the inverse. A page of ten accelerators with twenty runs each stays below a megabyte.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any, Final

#: Digits of numbers in texts of equal width.
_DIGITS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+-"
#: Characters for bytes: all that can be seen, but those that mean something in HTML or in a string of JavaScript.
_SIGNS: Final = "".join(map(chr, range(33, 127))).translate(dict.fromkeys(map(ord, "<&\\")))
#: Digits of measurements that a person reads.
_PRECISION: Final = 5


def text_of(payload: Mapping[str, Any]) -> str:
    """Return the data block: compact JSON, deflated, as characters that HTML can hold."""
    text = json.dumps(compacted(payload), separators=(",", ":"), allow_nan=False)
    return encoded(zlib.compress(text.encode("utf-8", errors="replace"), 9))


def compacted(payload: Mapping[str, Any]) -> dict[str, Any]:
    messages: dict[str, int] = {}
    columns = [_column(column, messages) for column in payload["columns"]]
    return {
        **payload,
        "axes": [[list(axes), list(axes.values())] for axes in payload["axes"]],
        "axis": _digits(payload["axis"]),
        "ids": dict(_unexpected_ids(payload)),
        "messages": list(messages),
        "columns": columns,
    }


def _column(column: Mapping[str, Any], messages: dict[str, int]) -> dict[str, Any]:
    """Return a column without what others have too. ``messages`` has those of all columns, with their numbers."""
    numbers = [messages.setdefault(message, len(messages)) for message in column["messages"]]
    runs = [{**run, "changed": _sparse(run["changed"])} for run in column["history"]]
    details = {
        place: {name: _rounded(value) for name, value in known.items()} for place, known in column["details"].items()
    }
    message = _digits([numbers[place] if place >= 0 else place for place in column["message"]])
    kept = {name: value for name, value in column.items() if name != "messages"}
    return {**kept, "message": message, "history": runs, "details": details}


def _rounded(value: Any) -> Any:
    return float(f"{value:.{_PRECISION}g}") if isinstance(value, float) else value


def _unexpected_ids(payload: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    """Yield places and ids of the cases whose ids do not follow from their rows and axes."""
    rows = chain.from_iterable([(area, name)] * number for area, name, number in payload["rows"])
    for place, (id, (area, name), axis) in enumerate(zip(payload["ids"], rows, payload["axis"], strict=True)):
        values = payload["axes"][axis].values()
        if id != f"{area}.{name}" + (f"[{'-'.join(values)}]" if values else ""):
            yield place, id


def _digits(numbers: Sequence[int]) -> list[Any]:
    """Return numbers from -1 on as a width and a text, in which each has so many digits."""
    width, most = 1, max(numbers, default=0) + 1
    while len(_DIGITS) ** width <= most:
        width += 1
    return [width, "".join(_number(number + 1, width) for number in numbers)]


def _number(number: int, width: int) -> str:
    digits = []
    for _ in range(width):
        number, digit = divmod(number, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return "".join(reversed(digits))


def _sparse(letters: Mapping[int, str]) -> list[Any]:
    """Return the distances between the places, which are small, and the letters at them."""
    places = sorted(letters)
    return [[new - old for old, new in pairwise([0, *places])], "".join(letters[place] for place in places)]


def encoded(data: Iterable[int]) -> str:
    """Return bytes as text: 13 or 14 bits are two of 91 characters, an eighth less than base64 (basE91)."""
    found: list[str] = []
    bits = number = 0
    for byte in data:
        bits |= byte << number
        number += 8
        if number > 13:
            width = 13 if (bits & 8191) > 88 else 14
            high, low = divmod(bits & ((1 << width) - 1), len(_SIGNS))
            found.append(_SIGNS[low] + _SIGNS[high])
            bits >>= width
            number -= width
    if number:
        high, low = divmod(bits, len(_SIGNS))
        found.append(_SIGNS[low] + (_SIGNS[high] if number > 7 or high else ""))
    return "".join(found)
