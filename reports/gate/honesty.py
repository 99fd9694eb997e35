"""G08: the declaration is true, and the verdicts are those that it leads to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from conformance.reports.gate.claim_book import SUPPORTED, UNDECLARED, UNSUPPORTED
from conformance.reports.gate.evidence import Evidence
from conformance.reports.gate.finding import Finding, counted, named, reject
from conformance.reports.model import CaseRecord
from conformance.reports.verdict import Outcome, Reason

#: Lies, also where a lenient run only noted them.
_LIES: Final = {
    Reason.OVER_DECLARED: "is declared supported and not there",
    Reason.STUB: "is declared supported and does nothing",
    Reason.FALLBACK: "is computed on the host without being declared so",
    Reason.UNSAFE: "is declared unsupported and answers wrongly, crashes or hangs",
}
_LIES_MANY: Final = {
    Reason.OVER_DECLARED: "are declared supported and not there",
    Reason.STUB: "are declared supported and do nothing",
    Reason.FALLBACK: "are computed on the host without being declared so",
    Reason.UNSAFE: "are declared unsupported and answer wrongly, crash or hang",
}


def check_honesty(evidence: Evidence) -> Iterator[Finding]:
    """G08: nothing is over-declared, a stub, a silent fallback or unsafe; verdict and claim do not contradict."""
    lies: dict[Reason, list[str]] = defaultdict(list)
    odd: dict[str, list[str]] = defaultdict(list)
    for case in evidence.report.cases:
        if case.reason in _LIES and case.id not in evidence.settled.waived:
            lies[case.reason].append(case.id)
        elif contradiction := _contradiction(case, evidence):
            odd[contradiction].append(case.id)
    for reason, ids in lies.items():
        what = _LIES[reason] if len(ids) == 1 else _LIES_MANY[reason]
        yield reject("G08", f"{counted(len(ids), 'case')} {what} ({reason.value}): {named(ids)}.", ids)
    for contradiction, ids in odd.items():
        yield reject("G08", f"{counted(len(ids), 'case')} {contradiction}: {named(ids)}.", ids)


def _contradiction(case: CaseRecord, evidence: Evidence) -> str | None:
    """Why the verdict cannot come from the declaration, as the middle of a sentence."""
    if case.outcome is Outcome.PASS:
        # A case of the core, or of a capability that is core, runs undeclared; none runs and passes denied.
        denies = evidence.claims.denies
        denied = case.level != "core" and any(denies(cell, case.in_reference) for cell in case.requires)
        return "passed although the declaration denies what is needed" if denied else None
    if case.outcome is not Outcome.SKIP or case.reason not in _STATES_OF:
        return None
    if _STATES_OF[case.reason] in _states(case, evidence):
        return None
    return f"skipped as {case.reason.value} although the declaration says otherwise"


_STATES_OF: Final = {Reason.UNSUPPORTED: UNSUPPORTED, Reason.UNDECLARED: UNDECLARED}


def _states(case: CaseRecord, evidence: Evidence) -> set[str]:
    claims = (evidence.claims.claim(cell, case.in_reference) for cell in case.requires)
    return {claim.state if claim.state in (SUPPORTED, UNSUPPORTED) else UNDECLARED for claim in claims}
