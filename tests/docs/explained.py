"""Every verdict and every rule of the gate, from the code. ``python -m tests.docs.explained`` renews the pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from conformance.reports.gate.rules import RULES
from conformance.reports.profiles import POLICIES
from conformance.reports.verdict import _ALLOWED, DIFFERENCE_REASONS, REASON_DOCS, Outcome

DOCS = Path(__file__).parents[2] / "docs"
PAGE, GATE = DOCS / "explained.md", DOCS / "gate.md"
BEGIN, END = "<!-- policies:begin -->", "<!-- policies:end -->"
HEAD = """# Every verdict and every rule

    conformance gate --explain all

Made from the code: `python -m tests.docs.explained`. How verdicts come about is in [verdicts](verdicts.md), how
reports are judged in [the gate](gate.md).
"""


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, "## Verdicts", "", *_verdicts(), "", "## Rules of the gate", "", *_rules()]) + "\n"


def _verdicts() -> Iterator[str]:
    yield "| outcome | reason | when | what to do |"
    yield "|---|---|---|---|"
    for reason, doc in REASON_DOCS.items():
        outcomes = " or ".join(one.value for one in Outcome if reason in _ALLOWED[one])
        note = " (as a note)" if reason in DIFFERENCE_REASONS else ""
        shown = outcomes.replace("skip or fail", f"fail, or skip{note}")
        yield f"| {shown} | `{reason.value}` | {doc.when} | {doc.mend or '–'} |"


def _rules() -> Iterator[str]:
    yield "| rule | asks | why | what to do |"
    yield "|---|---|---|---|"
    for rule in RULES.values():
        yield f"| {rule.id} | {rule.asks} | {rule.why} | {rule.mend} |"


def policies() -> str:
    """The table of what profiles ask."""
    rows = [f"| `{one.profile}` | {one.max_age.days} | {one.max_flaky} |" for one in POLICIES.values()]
    return "\n".join(["| profile | oldest run, days | cases waived as flaky |", "|---|--:|--:|", *rows])


def with_policies(text: str) -> str:
    """The gate's page with its generated part in place."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{policies()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    GATE.write_text(with_policies(GATE.read_text(encoding="utf-8")), encoding="utf-8")
