"""Which written claims a run verified: a claim that no passing case exercised is only a word."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from conformance.base.claim_lookup import SUPPORTED, ClaimLookup
from conformance.reports.model import Report
from conformance.reports.plain_text import one_line
from conformance.reports.verdict import Outcome

#: Characters of a contradiction, whose cells are text of the report.
_LONGEST_PROBLEM: Final = 400


@dataclass(frozen=True)
class ClaimCheck:
    """The supported claims of a declaration: those that a passing case exercised, and the others."""

    verified: tuple[str, ...]
    unverified: tuple[str, ...]

    @property
    def total(self) -> int:
        return len(self.verified) + len(self.unverified)


def claims_of(report: Report) -> ClaimLookup:
    """Return the lookup of the claims in the report's declaration."""
    return ClaimLookup((row.cell, row.state, row.detail) for row in report.declaration.cells)


def self_contradiction(report: Report, lookup: ClaimLookup) -> str:
    """Return how the declaration contradicts itself, as the end of a sentence, or an empty string if it does not.

    A run cannot start with such a declaration. A report with one was edited.
    """
    problems = list(lookup.contradictions(cell for case in report.cases for cell in case.requires))
    if not problems:
        return ""
    more = f" ({len(problems)} cells in all)" if len(problems) > 1 else ""
    return f"contradicts itself{more}: {one_line(problems[0], _LONGEST_PROBLEM)}"


def check_claims(report: Report) -> ClaimCheck:
    """Sort the report's supported claims by whether a passing case verifies them.

    A passing case verifies only the claims that hold for its cells. Under ``operators.*`` and ``operators.linalg.*``
    a passing ``operators.linalg.det`` verifies the longer pattern alone.
    """
    lookup = claims_of(report)
    passing = {
        (cell, case.in_reference) for case in report.cases if case.outcome is Outcome.PASS for cell in case.requires
    }
    holding = {written for cell, in_reference in passing for written in lookup.find(cell, in_reference).written}
    claims = [claim.cell for claim in report.declaration.cells if claim.state == SUPPORTED]
    return ClaimCheck(
        verified=tuple(cell for cell in claims if cell in holding),
        unverified=tuple(cell for cell in claims if cell not in holding),
    )
