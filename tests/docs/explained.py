"""Every verdict and every rule of the gate, from the code. ``python -m tests.docs.explained`` renews the pages."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from conformance.reports.gate.rules import RULES
from conformance.reports.profiles import POLICIES
from conformance.reports.verdict import Outcome, Reason

DOCS = Path(__file__).parents[2] / "docs"
PAGE, GATE = DOCS / "explained.md", DOCS / "gate.md"
HEAD = """# Every verdict and every rule

    conformance gate --explain all

Made from the code: `python -m tests.docs.explained`. How verdicts come about is in [verdicts](verdicts.md), how
reports are judged in [the gate](gate.md).
"""


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, "## Verdicts", "", reasons(), "", "## Rules of the gate", "", *_rules()]) + "\n"


def reasons() -> str:
    """The table of all reasons."""
    rows = [
        f"| {_outcomes(reason)} | `{reason.value}` | {reason.facts.when} | {reason.facts.fix or '–'} |"
        for reason in Reason
    ]
    return "\n".join(["| outcome | reason | when | what to do |", "|---|---|---|---|", *rows])


def _outcomes(reason: Reason) -> str:
    words = " or ".join(outcome.value for outcome in reason.facts.outcomes)
    return f"{words} (as a note)" if reason.facts.is_difference else words


def reason_names() -> str:
    """The short table of the README: the reasons of each outcome, at the outcome that is usual."""
    rows = []
    for outcome in Outcome:
        names = [f"`{reason.value}`" for reason in Reason if reason.facts.outcomes[0] is outcome]
        rows.append(f"| {outcome.value} | {', '.join(names)} |")
    return "\n".join(["| outcome | reasons |", "|---|---|", *rows])


def _rules() -> Iterator[str]:
    yield "| rule | requirement | why | what to do |"
    yield "|---|---|---|---|"
    for rule in RULES.values():
        yield f"| {rule.id} | {rule.requirement} | {rule.why} | {rule.fix} |"


def policies() -> str:
    """The table of what profiles ask."""
    rows = [f"| `{one.profile}` | {one.max_age.days} | {one.max_flaky} |" for one in POLICIES.values()]
    return "\n".join(["| profile | oldest run, days | cases waived as flaky |", "|---|--:|--:|", *rows])


#: Page, name of a generated part, and what makes it.
PARTS = (
    (GATE, "policies", policies),
    (DOCS / "verdicts.md", "reasons", reasons),
    (DOCS.parent / "README.md", "reasons", reason_names),
)


def with_part(text: str, name: str, part: str) -> str:
    """The page with its generated part in place."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before, rest = text.split(begin)
    return f"{before}{begin}\n{part}\n{end}{rest.split(end)[1]}"


if __name__ == "__main__":
    if sys.argv[1:] == ["--print"]:
        sys.stdout.write(page())
        raise SystemExit
    PAGE.write_text(page(), encoding="utf-8")
    for path, name, make in PARTS:
        path.write_text(with_part(path.read_text(encoding="utf-8"), name, make()), encoding="utf-8")
