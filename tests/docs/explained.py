"""Tables of every verdict and every rule of the gate, from the code.

``python -m tests.docs.renew`` writes them, with all other generated parts.
"""

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

This page is made from the code, by `python -m tests.docs.renew`. [Verdicts](verdicts.md) explains how a case gets
its verdict, [the gate](gate.md) how a report is judged.
"""


def page() -> str:
    """Return the whole page."""
    return "\n".join([HEAD, "## Verdicts", "", reasons(), "", "## Rules of the gate", "", *_rules()]) + "\n"


def reasons() -> str:
    """Return the table of all reasons."""
    rows = [
        f"| {_outcomes(reason)} | `{reason.value}` | {reason.facts.when} | {reason.facts.fix or '–'} |"
        for reason in Reason
    ]
    return "\n".join(["| outcome | reason | when | what to do |", "|---|---|---|---|", *rows])


def _outcomes(reason: Reason) -> str:
    words = " or ".join(outcome.value for outcome in reason.facts.outcomes)
    return f"{words} (as a note)" if reason.facts.is_difference else words


def reason_names() -> str:
    """Return the short table of the README: each outcome with the reasons for which it is the usual one."""
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
    """Return the table of what the gate demands for each profile."""
    rows = [f"| `{policy.profile}` | {policy.max_age.days} | {policy.max_flaky} |" for policy in POLICIES.values()]
    return "\n".join(["| profile | oldest run, days | cases waived as flaky |", "|---|--:|--:|", *rows])


#: Page, name of a generated part, and the function that makes it.
PARTS = (
    (GATE, "policies", policies),
    (DOCS / "verdicts.md", "reasons", reasons),
    (DOCS.parent / "README.md", "reasons", reason_names),
)


def with_part(text: str, name: str, part: str) -> str:
    """Return the page with its generated part in place."""
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
