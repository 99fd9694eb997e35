"""Rendering of the page: one HTML file that needs no network. Equal reports give equal bytes."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any, Final

from markupsafe import Markup

from conformance.reports.page import pictures
from conformance.reports.page.cells import Mark, PageCell
from conformance.reports.page.changes import blocked, changes_of
from conformance.reports.page.columns import PageColumn
from conformance.reports.page.compact import text_of
from conformance.reports.page.packing import payload
from conformance.reports.page.states import StateLine, summary
from conformance.reports.page.table import AreaRows, Table
from conformance.reports.plain_text import one_line, plain
from conformance.reports.surroundings import sentence, surroundings_tables
from conformance.reports.times import day, in_order

#: Parts of the page's one script, in order.
SCRIPTS: Final = ("cases.js", "answer.js", "dialog.js", "compare.js", "page.js")
#: Rows of the matrix that can be shown alone: the value in the address, and the words.
ROWS_SHOWN: Final = (
    ("", "All"),
    ("fail", "That fail"),
    ("differ", "That differ"),
    ("changed", "That changed"),
    ("lies", "Contradicting claims"),
)
#: Styles of the most frequent cells, which have the colour of a cell without a class.
_UNMARKED: Final = frozenset({Mark.FULL.facts.style, Mark.PART.facts.style})
#: Comments that have lines of their own in a script, and the blanks before a line. No text of a script has lines.
OF_WRITERS: Final = re.compile(
    r"^[ \t]*(?://[^\n]*|/\*(?:(?!\*/).)*\*/)[ \t]*$|^[ \t]+|\n(?=\n)", re.DOTALL | re.MULTILINE
)
#: Causes of a change that the page shows; the comparison of two files has all of them.
_MOST_CAUSES: Final = 30


def render(columns: Sequence[PageColumn], table: Table, rows: Sequence[AreaRows]) -> str:
    """Return the HTML of the page."""
    style, script = (OF_WRITERS.sub("", text) for text in (_asset("page.css"), "\n".join(map(_asset, SCRIPTS))))
    states = [StateLine(column, changes_of(column)) for column in columns]
    text: str = _template().render(
        states=states,
        still=_still(states),
        blocks=[blocked(column) for column in columns],
        columns=columns,
        table=table,
        rows=rows,
        rows_shown=ROWS_SHOWN,
        marks=list(Mark),
        most=_MOST_CAUSES,
        width=_width(len(columns)),
        example=f"conv2d bf16 training {one_line(columns[0].name, 40)}",
        heat=pictures.heat_map(rows),
        # A dtype whose cases are all exact has no picture.
        strips=[
            (column, [strip for strip in pictures.error_strips(column.report.cases) if any(strip.bins)])
            for column in columns
        ],
        least=pictures.LEAST,
        speeds=pictures.speed_plots(columns),
        surroundings=[(column, surroundings_tables(column.report.cases)) for column in columns],
        waivers=pictures.waived_groups(columns),
        style=style,
        script=script,
        policy=_policy(style, script),
        data=text_of(payload(table, columns)),
        newest=max((column.report.run.started for column in columns), key=in_order),
        day=day,
        summary=summary(states),
    )
    return text


def _still(states: Sequence[StateLine]) -> str:
    """Return a sentence about the accelerators that the list of changes does not name; empty if it names all."""
    first = [plain(line.column.title) for line in states if line.changes is None]
    same = [
        plain(line.column.title)
        for line in states
        if line.changes is not None and not (line.changes.broke or line.changes.healed)
    ]
    parts = [f"No case changed: {', '.join(same)}."] if same else []
    return " ".join([*parts, *([f"First run, nothing to compare with: {', '.join(first)}."] if first else [])])


def _width(number: int) -> str:
    """Return the class that tells the style sheet from which width on so many columns need no scrolling."""
    return next((name for most, name in ((4, "few"), (6, "some"), (10, "many")) if number <= most), "crowd")


def _shown(cell: PageCell) -> Markup:
    """Return the cell as HTML. Words are marked, because narrow screens show the symbol alone."""
    words = cell.mark.facts.words
    # Everything here is the page's own text.
    return Markup(f"{cell.sign}<i> {words}</i>" if words else cell.text)  # noqa: S704


def _styled(cell: PageCell) -> Markup:
    """Return the class of a cell as an attribute. A cell without one is a cell in which cases pass, and none fails."""
    # The names of classes are the page's own.
    return Markup("" if cell.style in _UNMARKED else f" class={cell.style}")  # noqa: S704


def _policy(style: str, script: str) -> str:
    """Return a content security policy: nothing is loaded, and only the page's own style and script run."""
    own = f"style-src '{_hash(style)}'; script-src '{_hash(script)}'"
    return f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'"


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _asset(name: str) -> str:
    return (resources.files(__package__) / "templates" / name).read_text(encoding="utf-8")


@cache
def _template() -> Any:
    """Return the page's template, which escapes every value and refuses unknown names."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_asset),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["plain"] = plain
    environment.filters["shown"] = _shown
    environment.filters["sentence"] = sentence
    environment.filters["styled"] = _styled
    return environment.get_template("page.html")
