"""The generated tables explain every reason and every rule."""

from __future__ import annotations

from conformance.reports.gate.rules import RULES
from conformance.reports.verdict import Reason
from conformance.reports.waivers.file import parse_waivers

from . import explained
from .pages import DOCS, blocks, pages, rows, text


def test_every_reason_and_every_rule_is_explained_once() -> None:
    explaining = [page for page in pages() if page.parent == DOCS]
    found = [row[:2] for page in explaining for row in rows(text(page)) if len(row) == 4]
    firsts = [cell.strip("`") for row in found for cell in row]

    assert [reason.value for reason in Reason if firsts.count(reason.value) != 1] == []
    assert [id for id in RULES if firsts.count(id) != 1] == []


def test_the_waiver_in_the_documentation_is_read() -> None:
    (block,) = [block for block in blocks(text(explained.GATE), "toml") if block.body.startswith("# waivers")]

    (waiver,) = parse_waivers(block.body.encode(), "docs/gate.md")

    assert waiver.covers("operators.sub[int8-inference]")
    assert not waiver.covers("operators.add[float32-training]")
