"""Packed report in few bytes: it has everything that cases share once. It is lossless, and read like other reports.

A row is ``[id, shape, seconds, requires, axes, values, message, repro]``. A shape holds the members that many cases
share. ``requires`` and ``axes`` are 0 where they follow from the id. Zeros at the end of a row are left out.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from conformance.reports.model import CaseRecord, Report
from conformance.reports.report_json import COMMON, PACKED, as_plain, said_axes

SUMMARY = "JSON, a report in few bytes"


def render(report: Report, _width: int = 0) -> str:
    """Return the packed text, with a line end at its end."""
    head = as_plain(replace(report, cases=()))
    shapes: dict[str, int] = {}
    rows = [_row(case, shapes) for case in report.cases]
    value = {
        "schema": report.schema,
        "packed": PACKED,
        **head,
        "shapes": [json.loads(shape) for shape in shapes],
        "rows": rows,
    }
    return json.dumps(value, separators=(",", ":"), allow_nan=False) + "\n"


def _row(case: CaseRecord, shapes: dict[str, int]) -> list[Any]:
    """Return the row of a case. ``shapes`` numbers what cases share, and grows with new shapes."""
    plain = as_plain(case)
    common = {name: plain[name] for name in COMMON if name in plain}
    shape = json.dumps([common, list(case.axes), list(case.metrics)], separators=(",", ":"))
    row = [
        case.id,
        shapes.setdefault(shape, len(shapes)),
        plain.get("seconds", 0),
        # 0 stands for values that unpack() can derive from the id.
        0 if case.requires == (case.id,) else list(case.requires),
        0 if said_axes(case.id, list(case.axes)) == case.axes else list(case.axes.values()),
        list(case.metrics.values()) or 0,
        case.message or 0,
        case.repro or 0,
    ]
    # unpack() adds these zeros again.
    while row[-1] == 0:
        row.pop()
    return row
