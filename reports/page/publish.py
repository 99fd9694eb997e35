"""Publishing: the page, and files for programs beside it. Equal reports give equal bytes."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

from conformance.base.errors import UsageError
from conformance.reports.page.cells import Ending, PageCell
from conformance.reports.page.columns import PageColumn, PublishedReport, make_columns
from conformance.reports.page.render import render
from conformance.reports.page.table import AreaRows, Table, make_rows, make_table
from conformance.reports.plain_text import markdown as escaped
from conformance.reports.plain_text import one_line
from conformance.reports.views import badge, endpoint, markdown
from conformance.reports.writer import write_text

BADGES, CASES = "badges", "cases"
_ODD = re.compile(r"[^A-Za-z0-9_-]+")


def publish(sources: Iterable[PublishedReport], folder: Path) -> tuple[Path, ...]:
    """Write the page, the matrices, the cases and the badges; return the paths."""
    return write(make_columns(sources), folder)


def write(columns: Sequence[PageColumn], folder: Path) -> tuple[Path, ...]:
    """Write everything about the columns; return the paths."""
    if not columns:
        raise UsageError("there is no report to publish. Name report folders or report.json files.")
    paths = _written(files(columns), folder, (BADGES, CASES))
    # Columns have most ids in common.
    quoted = cache(_quoted)
    for name, column in zip(_names(columns), columns, strict=True):
        path = folder / CASES / f"{name}.json.gz"
        # No time in the file: equal reports give equal bytes.
        path.write_bytes(gzip.compress(cases_json(column, quoted).encode("utf-8", errors="replace"), 9, mtime=0))
        paths.append(path)
    return tuple(paths)


def write_tables(sources: Iterable[PublishedReport], folder: Path) -> tuple[Path, ...]:
    """Write the tables and the badges, without the page and its cases; return the paths."""
    columns = make_columns(sources)
    table = make_table(columns)
    return tuple(_written(_tables(columns, table, make_rows(table, columns)), folder, (BADGES,)))


def _written(texts: Mapping[str, str], folder: Path, subfolders: Sequence[str]) -> list[Path]:
    """Write each text to the file of its name; return the paths."""
    try:
        for name in subfolders:
            (folder / name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write {folder}: {error.strerror}. Choose another folder.") from None
    for name, text in texts.items():
        write_text(folder / name, text)
    return [folder / name for name in texts]


def files(columns: Sequence[PageColumn]) -> dict[str, str]:
    """Return the text of each file by its name."""
    table = make_table(columns)
    rows = make_rows(table, columns)
    return {"index.html": render(columns, table, rows), **_tables(columns, table, rows)}


def _tables(columns: Sequence[PageColumn], table: Table, rows: Sequence[AreaRows]) -> dict[str, str]:
    """Return the text of each file that is read without the page, by its name."""
    return {
        "matrix.json": matrix_json(columns, rows),
        "matrix.md": "\n".join(markdown.render(column.report) for column in columns),
        "operators.md": operators_markdown(table, columns, rows),
        "operators.csv": operators_csv(table, columns, rows),
        **dict(_badges(columns)),
    }


def _badges(columns: Sequence[PageColumn]) -> Iterator[tuple[str, str]]:
    """Yield name and text of two files for each column."""
    for name, column in zip(_names(columns), columns, strict=True):
        yield f"{BADGES}/{name}.svg", badge.render(column.report)
        yield f"{BADGES}/{name}.json", endpoint.render(column.report)


def _names(columns: Sequence[PageColumn]) -> Iterator[str]:
    """Yield a file name for each column. Names of accelerators are untrusted and never become paths."""
    used: set[str] = set()
    for place, column in enumerate(columns):
        name = _ODD.sub("-", column.title).strip("-")[:60] or "accelerator"
        # Two titles may differ only in characters that a file name must not have.
        if name in used:
            name = f"{name}-{place}"
        used.add(name)
        yield name


def _quoted(text: str) -> str:
    """Return a text as a part of an address."""
    return quote_plus(text, errors="replace")


def cases_json(column: PageColumn, quoted: Callable[[str], str] = _quoted) -> str:
    """Return every planned case of a column with its verdict, the verdict before, and its address on the page."""
    before = column.earlier[-1].endings if column.earlier else {}
    link, verdict = f"index.html#case={quoted(f'{column.title}|')}", cache(lambda ending: json.dumps(_verdict(ending)))
    rows = []
    for id, ending in column.endings.items():
        old = before.get(id, ending)
        changed = f'"before": {verdict(old)}, ' if old != ending else ""
        address = json.dumps(link + quoted(id))
        rows.append(f'{{"id": {json.dumps(id)}, "verdict": {verdict(ending)}, {changed}"link": {address}}}')
    run = column.report.run
    head = {"schema": 1, "accelerator": column.name, "origin": column.source.origin.name.lower(), "run": run.id}
    return json.dumps({**head, "started": run.started})[:-1] + ', "cases": [\n' + ",\n".join(rows) + "\n]}\n"


def _verdict(ending: Ending) -> list[str] | None:
    """Return outcome and reason; None for a case without a verdict."""
    return None if ending is None else [ending[0].value, ending[1].value]


def _operators(table: Table, rows: Sequence[AreaRows]) -> Iterator[tuple[str, int, tuple[PageCell, ...]]]:
    """Yield name, number of cases and cells of each operator: what is tested by dtype and mode, without workloads."""
    for area in rows:
        for subject, cells in area.subjects:
            cases = [table.planned[id] for id in subject.ids]
            if any({"dtype", "mode"} <= case.axes.keys() and case.tier != "workload" for case in cases):
                yield f"{area.name}.{subject.name}", len(cases), cells


def operators_markdown(table: Table, columns: Sequence[PageColumn], rows: Sequence[AreaRows]) -> str:
    """Return operators and accelerators as a Markdown table, with the symbols of the page."""
    head = ["operator", "cases", *(escaped(column.title) for column in columns)]
    lines = [f"| {' | '.join(head)} |", f"| --- |{' --: |' * (len(head) - 1)}"]
    for name, number, cells in _operators(table, rows):
        lines.append(f"| {' | '.join([escaped(name), str(number), *(cell.text for cell in cells)])} |")
    return "\n".join(lines) + "\n"


def operators_csv(table: Table, columns: Sequence[PageColumn], rows: Sequence[AreaRows]) -> str:
    """Return operators and accelerators as CSV. A cell is ``mark passed/failed/planned``, such as ``fail 7/2/9``."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["operator", "cases", *(_inert(column.title) for column in columns)])
    for name, number, cells in _operators(table, rows):
        texts = [f"{cell.mark.value} {cell.passed}/{cell.failed}/{cell.number}" for cell in cells]
        writer.writerow([_inert(name), number, *texts])
    return file.getvalue()


def _inert(text: str) -> str:
    """Return the text for a spreadsheet, which would run a cell that begins like a formula."""
    plain = one_line(text)
    return f"'{plain}" if plain[:1] in ("=", "+", "-", "@") else plain


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
