"""Rendering of the page: one HTML file that needs no network. Equal reports give equal bytes."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from conformance.reports.breadth import kernel_sentence
from conformance.reports.gate.finding import Decision
from conformance.reports.page import pictures
from conformance.reports.page.cells import Mark
from conformance.reports.page.columns import PageColumn
from conformance.reports.page.packing import pack
from conformance.reports.page.table import AreaRows, Table
from conformance.reports.plain_text import plain


@dataclass(frozen=True)
class Card:
    """Card of one accelerator above the table."""

    column: PageColumn
    spark: str

    @property
    def devices(self) -> str:
        return ", ".join(plain(name) for name in self.column.report.accelerator.device_names[:3])

    @property
    def facts(self) -> tuple[tuple[str, str], ...]:
        """Return the rows of the card as label and value, without those that are empty."""
        column, report = self.column, self.column.report
        aim, counts = column.aim, report.counts
        rows = (
            ("profile reached", report.profile_text),
            (f"verified of {aim.name}", f"{aim.verified} of {aim.claimed}"),
            ("cases", f"{counts.passed} pass, {counts.skipped} skip, {counts.failed} fail"),
            ("kernels", kernel_sentence(report.kernel_origins)),
            ("without a verdict", str(counts.lost) if counts.lost else ""),
            ("devices", self.devices),
            ("torch", plain(report.accelerator.torch)),
            ("driver", plain(report.accelerator.driver)),
            ("suite", plain(report.run.suite.version)),
            ("source", column.source.origin.value),
            ("signed by", plain(column.source.signer) or "nobody"),
            *_judged(column.source.decision),
        )
        return tuple(row for row in rows if row[1])


def _judged(decision: Decision | None) -> tuple[tuple[str, str], ...]:
    """Return the gate's decision as rows of a card: which run, the rules that reject it, and what was not checked."""
    if decision is None:
        return ()
    rejected = f"rejects it: {', '.join(decision.rejecting)}" if decision.rejections else "accepts it"
    return (
        ("run id", plain(decision.run)),
        (f"gate, profile {decision.profile}", rejected),
        ("waived failures", str(decision.waived) if decision.waived else ""),
        ("not checked", "; ".join(decision.unchecked)),
    )


def render(columns: Sequence[PageColumn], table: Table, rows: Sequence[AreaRows]) -> str:
    """Return the HTML of the page."""
    style, script = _asset("page.css"), _asset("page.js")
    text: str = _template().render(
        cards=[Card(column, pictures.sparkline(column)) for column in columns],
        columns=columns,
        rows=rows,
        marks=list(Mark),
        heat=pictures.heat_map(rows, columns),
        strips=[(column, pictures.error_strips(column.report.cases)) for column in columns],
        least=pictures.LEAST,
        steps=pictures.step_times(columns),
        style=style,
        script=script,
        policy=_policy(style, script),
        data=pack(table, columns),
        newest=max(column.report.run.started for column in columns),
    )
    return text


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
    return environment.get_template("page.html")
