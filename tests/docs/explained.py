"""Tables of every verdict and every rule of the gate, from the code.

``python -m tests.docs.explained`` prints them. ``python -m tests.docs.renew`` writes them, with all other generated
parts.
"""

from __future__ import annotations

from typing import Final

from conformance.reports.gate.rules import RULES
from conformance.reports.profiles import POLICIES
from conformance.reports.verdict import Outcome, Reason

from .pages import DOCS, README, table

VERDICTS, GATE = DOCS / "verdicts.md", DOCS / "gate.md"


def reasons() -> str:
    """Return the table of all reasons."""
    return table(
        ("outcome", "reason", "when", "what to do"),
        ((_outcomes(reason), f"`{reason.value}`", reason.facts.when, reason.facts.fix or "–") for reason in Reason),
    )


def _outcomes(reason: Reason) -> str:
    words = " or ".join(outcome.value for outcome in reason.facts.outcomes)
    return f"{words} (as a note)" if reason.facts.is_difference else words


def reason_names() -> str:
    """Return the short table of the README: each outcome with the reasons for which it is the usual one."""
    names = {
        outcome: ", ".join(f"`{reason.value}`" for reason in Reason if reason.facts.outcomes[0] is outcome)
        for outcome in Outcome
    }
    return table(("outcome", "reasons"), ((outcome.value, listed) for outcome, listed in names.items()))


def rules() -> str:
    """Return the table of all rules of the gate."""
    return table(
        ("rule", "requirement", "why", "what to do"),
        ((rule.id, rule.requirement, rule.why, rule.fix) for rule in RULES.values()),
    )


def policies() -> str:
    """Return the table of what the gate demands for each profile."""
    rows = [f"| `{policy.profile}` | {policy.max_age.days} | {policy.max_flaky} |" for policy in POLICIES.values()]
    return "\n".join(["| profile | oldest run, days | cases waived as flaky |", "|---|--:|--:|", *rows])


#: Page, name of a generated part, and the function that makes it.
PARTS: Final = (
    (GATE, "policies", policies),
    (GATE, "rules", rules),
    (VERDICTS, "reasons", reasons),
    (README, "reasons", reason_names),
)


if __name__ == "__main__":
    print(reasons(), rules(), sep="\n\n")
