"""Publishing: the page, and files for programs beside it. Equal reports give equal bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from conformance.errors import UsageError
from conformance.reports.page.columns import PageColumn, PublishedReport, make_columns
from conformance.reports.page.render import render
from conformance.reports.page.table import AreaRows, make_rows, make_table
from conformance.reports.views import badge, endpoint, markdown
from conformance.reports.writer import write_text

BADGES = "badges"
_ODD = re.compile(r"[^A-Za-z0-9_-]+")


def publish(sources: Iterable[PublishedReport], folder: Path) -> tuple[Path, ...]:
    """Write the page, the matrices and the badges; return the paths."""
    columns = make_columns(sources)
    if not columns:
        raise UsageError("there is no report to publish. Name report folders or report.json files.")
    try:
        (folder / BADGES).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write {folder}: {error.strerror}. Choose another folder.") from None
    texts = {folder / name: text for name, text in files(columns).items()}
    for path, text in texts.items():
        write_text(path, text)
    return tuple(texts)


def files(columns: Sequence[PageColumn]) -> dict[str, str]:
    """Return the text of each file by its name."""
    table = make_table(columns)
    rows = make_rows(table, columns)
    return {
        "index.html": render(columns, table, rows),
        "matrix.json": matrix_json(columns, rows),
        "matrix.md": "\n".join(markdown.render(column.report) for column in columns),
        **dict(_badges(columns)),
    }


def _badges(columns: Sequence[PageColumn]) -> Iterator[tuple[str, str]]:
    """Yield name and text of two files for each column. Names of accelerators are untrusted and never become paths."""
    used: set[str] = set()
    for place, column in enumerate(columns):
        name = _ODD.sub("-", column.title).strip("-")[:60] or "accelerator"
        # Two titles may differ only in characters that a file name must not have.
        if name in used:
            name = f"{name}-{place}"
        used.add(name)
        yield f"{BADGES}/{name}.svg", badge.render(column.report)
        yield f"{BADGES}/{name}.json", endpoint.render(column.report)


def _judged(column: PageColumn) -> dict[str, Any]:
    """Return the gate's decision about the column's report, if there is one."""
    decision = column.source.decision
    if decision is None:
        return {}
    return {
        "gate": {
            "run": decision.run,
            "profile": decision.profile,
            "accepted": not decision.rejections,
            "rejecting": list(decision.rejecting),
            "waived": decision.waived,
            "not_checked": list(decision.unchecked),
        }
    }


def matrix_json(columns: Sequence[PageColumn], rows: Sequence[AreaRows]) -> str:
    """Return areas and accelerators as numbers, for dashboards."""
    value = {
        "schema": 1,
        "accelerators": [
            {
                "name": column.name,
                "origin": column.source.origin.name.lower(),
                "started": column.report.run.started,
                "suite": column.report.run.suite.version,
                "profile": column.report.badge,
                "signer": column.source.signer,
                **_judged(column),
                "breadth": {"claimed": column.report.breadth.claimed, "planned": column.report.breadth.planned},
                "kernels": {area: dict(counts) for area, counts in column.report.kernel_origins.items()},
                "areas": {
                    row.name: {
                        "mark": row.cells[place].mark.value,
                        "cases": row.cells[place].number,
                        "passed": row.cells[place].passed,
                        "failed": row.cells[place].failed,
                    }
                    for row in rows
                },
            }
            for place, column in enumerate(columns)
        ],
    }
    return json.dumps(value, indent=1, sort_keys=True) + "\n"
