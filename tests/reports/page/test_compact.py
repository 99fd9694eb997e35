"""The compact form of the page's data: nothing is lost, in the script neither, and a large page is a small file."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
from dataclasses import replace
from typing import Any

import pytest

from conformance.reports.model import CaseRecord
from conformance.reports.page.columns import PublishedReport, make_columns
from conformance.reports.page.compact import compacted, encoded, text_of
from conformance.reports.page.packing import payload
from conformance.reports.page.render import OF_WRITERS, SCRIPTS, _asset
from conformance.reports.page.table import make_table
from conformance.reports.verdict import Outcome, Reason

from . import many
from .expanding import bytes_of, expanded
from .test_answers import TEMPLATES


def whole(*reports: Any) -> dict[str, Any]:
    columns = make_columns(map(PublishedReport, reports))
    return payload(make_table(columns), columns)


def reports() -> list[Any]:
    """Two accelerators with messages of their own, ids that do not follow from axes, and earlier runs."""
    odd = CaseRecord("operators.odd[b-a]", "operators", axes={"y": "a", "x": "b"})
    about = CaseRecord("moe.identity[5-4]", "moe", axes={"choices": "5", "capacity": "4"}, about="package")
    wrong = {"outcome": Outcome.FAIL, "reason": Reason.WRONG, "message": "3 is not 4", "metrics": {"error": 1 / 3}}
    made = []
    for name, salt in (("supa", 1), ("npu", 2)):
        for day in (1, 2, 3):
            report = many.large(name, 300, salt)
            cases = [replace(case, **wrong) if n % 17 == day else case for n, case in enumerate(report.cases)]
            run = replace(report.run, id=f"{name}-{day}", started=f"2026-01-0{day}T00:00:00+00:00")
            made.append(replace(report, run=run, cases=(*cases, odd, about)))
    return [*made, many.hostile()]


def as_said(data: dict[str, Any]) -> dict[str, Any]:
    """The data as JSON has it, with each message in its place, and numbers as precise as the page shows them."""
    plain = json.loads(json.dumps(data), parse_float=lambda text: float(f"{float(text):.5g}"))
    for column in plain["columns"]:
        texts = column.pop("messages")
        column["message"] = [texts[place] if place >= 0 else None for place in column["message"]]
    plain.pop("messages", None)
    return plain


def test_nothing_is_lost() -> None:
    data = whole(*reports())
    compact = json.loads(json.dumps(compacted(data)))

    assert as_said(expanded(compact)) == as_said(data)
    assert 0 < len(compact["ids"]) <= 4


def test_bytes_are_text_and_back() -> None:
    drawn = random.Random(5)
    blocks = [drawn.randbytes(length) for length in (*range(70), 1000)] + [bytes(40), b"\xff" * 41]

    for block in blocks:
        assert bytes_of(encoded(block))[: len(block)] == block
        assert not {*"<&\\ "} & {*encoded(block)}


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_script_reads_what_is_written() -> None:
    drawn = random.Random(6)
    blocks = [drawn.randbytes(length) for length in (*range(1, 40), 500)]
    data = whole(*reports())
    given = json.dumps({"blocks": [encoded(block) for block in blocks], "compact": compacted(data)})
    command = ["node", str(TEMPLATES.parents[2] / "tests" / "reports" / "page" / "expand.js"), str(TEMPLATES)]

    done = subprocess.run(command, input=given, capture_output=True, text=True, check=True)

    said = json.loads(done.stdout)
    assert [bytes(found)[: len(block)] for found, block in zip(said["bytes"], blocks, strict=True)] == blocks
    assert as_said(said["expanded"]) == as_said(data)


def test_ten_accelerators_with_twenty_runs_take_a_quarter_of_what_their_data_would() -> None:
    data = whole(*reports())

    assert len(text_of(data)) < len(json.dumps(data)) / 4


def test_comments_of_the_scripts_are_for_writers_alone() -> None:
    for name in SCRIPTS:
        script = _asset(name)
        # A text of several lines would lose the blanks before its lines.
        assert [line for line in script.splitlines() if line.count("`") % 2] == []
        left = OF_WRITERS.sub("", script)
        assert not re.search(r"^\s*(//|/\*)", left, re.MULTILINE)
        kept = [line.strip() for line in re.sub(r"(?m)^\s*/\*\*.*?\*/$", "", script, flags=re.DOTALL).splitlines()]
        assert [line for line in kept if line and not line.startswith("//")] == [*filter(None, left.splitlines())]
