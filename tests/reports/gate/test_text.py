"""The gate's decision in a terminal: the last lines are the answer."""

from __future__ import annotations

import pytest

from conformance.reports.breadth import Breadth
from conformance.reports.gate.finding import Decision, note, reject
from conformance.reports.gate.views import text

REJECTED = Decision(
    "supa", "training", (reject("G06", "2 cases fail"), note("G07", "no baseline"), reject("G10", "a waiver is stale")),
    due=10, met=8, run="r-1", started="2026-11-21T08:00:00+00:00", finished="2026-11-21T09:00:00+00:00",
    signer="ada@supa.example", waived=3, breadth=Breadth(8, 12), unchecked=("whether the run is new (--challenge)",),
)  # fmt: skip


def test_rejections_come_after_notes_and_the_answer_is_last() -> None:
    lines = text(REJECTED).splitlines()

    assert [line[:10] for line in lines[:3]] == ["G07 note  ", "G06 reject", "G10 reject"]
    assert lines[3] == "not checked: whether the run is new (--challenge)"
    assert lines[4] == "run r-1, ended 2026-11-21T09:00:00+00:00; signed by ada@supa.example; 3 cases waived"
    assert lines[5].startswith("first: Fix the failure, withdraw the claim, or ask for a waiver.")
    assert lines[6].startswith(
        "rejected: supa, profile training · 8 of 12 cases claimed; 8 of 10 due cases passed or are waived; 2 findings"
    )
    assert len(lines) == 7


@pytest.mark.parametrize("rule", ["G99", ""])
def test_an_unknown_rule_has_no_next_step(rule: str) -> None:
    assert "first:" not in text(Decision("supa", "full", (reject(rule, "no"),)))
