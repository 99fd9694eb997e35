"""The generated tables are up to date, and explain every reason and every rule."""

from __future__ import annotations

from conformance.reports.gate.rules import RULES
from conformance.reports.verdict import Reason
from conformance.reports.waivers.file import parse_waivers

from . import explained
from .pages import blocks, rows, text


def test_the_pages_are_made_from_the_code() -> None:
    assert text(explained.PAGE) == explained.page(), "run: python -m tests.docs.renew"
    for path, name, make in explained.PARTS:
        assert explained.with_part(text(path), name, make()) == text(path), "run: python -m tests.docs.renew"


def test_every_reason_and_every_rule_is_explained() -> None:
    firsts = [cell.strip("`") for row in rows(text(explained.PAGE)) for cell in row[:2]]

    assert [reason.value for reason in Reason if firsts.count(reason.value) != 1] == []
    assert [id for id in RULES if firsts.count(id) != 1] == []


def test_the_waiver_in_the_documentation_is_read() -> None:
    (block,) = [block for block in blocks(text(explained.GATE), "toml") if block.body.startswith("# waivers")]

    (waiver,) = parse_waivers(block.body.encode(), "docs/gate.md")

    assert waiver.covers("operators.sub[int8-inference]")
    assert not waiver.covers("operators.add[float32-training]")
