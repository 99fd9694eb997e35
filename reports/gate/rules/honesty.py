"""G08: the declaration is true, and no verdict contradicts it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from conformance.claim_lookup import SUPPORTED, UNDECLARED, UNSUPPORTED
from conformance.reports.declaration.claims import self_contradiction
from conformance.reports.gate.evidence import GateEvidence
from conformance.reports.gate.finding import GateFinding, Rule, counted, named, reject
from conformance.reports.groups import CaseGroup
from conformance.reports.model import CaseRecord
from conformance.reports.verdict import Outcome, Reason


def check_honesty(evidence: GateEvidence) -> Iterator[GateFinding]:
    """Return findings of G08: false claims, and verdicts that contradict the declaration."""
    if contradiction := self_contradiction(evidence.report, evidence.claims):
        yield reject("G08", f"The declaration {contradiction}")
    lies: dict[Reason, list[str]] = defaultdict(list)
    odd: dict[str, list[str]] = defaultdict(list)
    for group in evidence.report.groups:
        if group.reason.facts.lies:  # also if a lenient run only noted them
            lies[group.reason] += [case.id for case in group.cases if case.id not in evidence.waiver_outcome.waived]
        for contradiction, ids in _contradictions(group, evidence):
            odd[contradiction] += ids
    for reason, ids in lies.items():
        if ids and reason.facts.lies:
            what = reason.facts.lies[len(ids) > 1]
            yield reject("G08", f"{counted(len(ids), 'case')} {what} ({reason.value}): {named(ids)}.", ids)
    for contradiction, ids in odd.items():
        yield reject("G08", f"{counted(len(ids), 'case')} {contradiction}: {named(ids)}.", ids)


def _contradictions(group: CaseGroup, evidence: GateEvidence) -> Iterator[tuple[str, list[str]]]:
    """Return contradictions of verdicts and declaration: the middle of a sentence, and the ids of the cases."""
    claims = evidence.claims
    if group.outcome is Outcome.PASS and group.level != "core":
        # A case whose requirements are core runs undeclared. No case passes with a requirement that is denied.
        if denied := [case.id for case in group.cases if claims.denies_any(case.requires)]:
            yield "passed although the declaration denies a required cell", denied
    elif group.outcome is Outcome.SKIP and group.reason in _STATES_OF:
        state = _STATES_OF[group.reason]
        if otherwise := [case.id for case in group.cases if state not in _states(case, evidence)]:
            yield f"skipped as {group.reason.value} although the declaration says otherwise", otherwise


_STATES_OF: Final = {Reason.UNSUPPORTED: UNSUPPORTED, Reason.UNDECLARED: UNDECLARED}


def _states(case: CaseRecord, evidence: GateEvidence) -> set[str]:
    claims = (evidence.claims.find(cell, case.in_reference) for cell in case.requires)
    return {claim.state if claim.state in (SUPPORTED, UNSUPPORTED) else UNDECLARED for claim in claims}


RULES = (
    Rule(
        "G08",
        requirement="No case is over-declared, a stub, a silent fallback or unsafe. No verdict contradicts the "
        "declaration.",
        why="A support table is useful only if its entries are true.",
        fix="Correct the declaration with: conformance suggest REPORT.",
        check=check_honesty,
    ),
)
