"""The data block of a page as the page's script reads it: the inverse of compact.py, without the script."""

from __future__ import annotations

import json
import re
import zlib
from itertools import accumulate
from typing import Any

DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+-"
SIGNS = [chr(code) for code in range(33, 127) if chr(code) not in "<&\\"]


def data_of(html: str) -> dict[str, Any]:
    block = re.search(r'<script type="text/plain" id="data">([^<]*)</script>', html)
    assert block
    found: dict[str, Any] = json.loads(zlib.decompressobj().decompress(bytes_of(block.group(1))))
    return expanded(found)


def bytes_of(text: str) -> bytes:
    """Two of 91 characters are 13 or 14 bits, the last one up to 7."""
    values = [SIGNS.index(sign) for sign in text]
    bits = width = 0
    for low, high in zip(values[::2], values[1::2], strict=False):
        pair = low + high * len(SIGNS)
        bits |= pair << width
        width += 13 if (pair & 8191) > 88 else 14
    if len(values) % 2:
        bits |= values[-1] << width
        width += 8
    return (bits & ((1 << width) - 1)).to_bytes(width // 8 + 1, "little")[: width // 8]


def expanded(found: dict[str, Any]) -> dict[str, Any]:
    rows = [(area, name) for area, name, number in found["rows"] for _ in range(number)]
    axes = [dict(zip(names, values, strict=True)) for names, values in found["axes"]]
    axis = _numbers(found["axis"])
    ids = []
    for place, (area, name) in enumerate(rows):
        values = "-".join(axes[axis[place]].values())
        ids.append(found["ids"].get(str(place), f"{area}.{name}" + (f"[{values}]" if values else "")))
    columns = [
        {
            **column,
            "messages": found["messages"],
            "message": _numbers(column["message"]),
            "history": [{**run, "changed": _changed(*run["changed"])} for run in column["history"]],
        }
        for column in found["columns"]
    ]
    return {**found, "ids": ids, "axes": axes, "axis": axis, "columns": columns}


def _numbers(packed: list[Any]) -> list[int]:
    width, text = packed
    found = []
    for at in range(0, len(text), width):
        number = 0
        for digit in text[at : at + width]:
            number = number * len(DIGITS) + DIGITS.index(digit)
        found.append(number - 1)
    return found


def _changed(gaps: list[int], letters: str) -> dict[str, str]:
    return {str(place): letter for place, letter in zip(accumulate(gaps), letters, strict=True)}
