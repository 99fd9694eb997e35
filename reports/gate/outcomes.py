"""G06, G16: what had to pass passed or is waived, and not too much of it only now and then."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from conformance.reports.gate.evidence import Evidence
from conformance.reports.gate.finding import Finding, counted, named, note, reject
from conformance.reports.model import CaseRecord
from conformance.reports.profiles import PROFILES, contained
from conformance.reports.status import idle_areas
from conformance.reports.verdict import DIFFERENCE_REASONS, Outcome, Reason
from conformance.reports.waivers.applying import observed

#: Skips of what nobody claimed. That it was not claimed is for the honesty rule to check.
_UNCLAIMED = frozenset({Reason.UNSUPPORTED, Reason.UNDECLARED, Reason.UNDER_DECLARED})


def is_due(case: CaseRecord) -> bool:
    """Whether the case had to pass: the core always, and everything else that is claimed."""
    return case.level == "core" or case.outcome is not Outcome.SKIP or case.reason not in _UNCLAIMED


def is_met(case: CaseRecord, evidence: Evidence) -> bool:
    """Whether the case passed, or failed as a valid waiver says."""
    if case.id in evidence.settled.waived:
        return case.level != "core"
    return case.outcome is Outcome.PASS or case.reason is Reason.WAIVER_STALE


def check_outcomes(evidence: Evidence) -> Iterator[Finding]:
    """G06: every case that is due passed or is validly waived."""
    yield from _check_something_passed(evidence)
    unmet: dict[str, list[str]] = defaultdict(list)
    for case in evidence.scope:
        if is_due(case) and not is_met(case, evidence):
            unmet[_kind(case, evidence)].append(case.id)
    for kind, ids in unmet.items():
        yield reject("G06", f"{counted(len(ids), 'case')} {kind}: {named(ids)}.", ids)
    idle = idle_areas((case.area, case.outcome, case.reason) for case in evidence.scope)
    if idle:
        yield reject("G06", f"Areas with claims in which nothing ran: {named(idle)}.")


def _kind(case: CaseRecord, evidence: Evidence) -> str:
    """What is wrong with an unmet case, as the middle of a sentence."""
    if case.level == "core" and case.outcome is Outcome.SKIP:
        return f"of the mandatory core did not pass (skip, {case.reason.value})"
    if case.id in evidence.settled.expired:
        return "failed with a waiver that has expired"
    if case.reason is Reason.WAIVED:
        found = observed(case)
        kind = f"({found.value})" if found else "(the report does not say how)"
        return f"failed {kind} and were waived by the run, but not by a waiver of this gate"
    if case.outcome is Outcome.SKIP and case.reason is Reason.ENVIRONMENT:
        return "that are claimed could not run (environment)"
    if case.outcome is Outcome.SKIP and case.reason in DIFFERENCE_REASONS:
        return f"that are claimed did not pass ({case.reason.value})"
    return f"failed ({case.reason.value})"


def _check_something_passed(evidence: Evidence) -> Iterator[Finding]:
    """A run in which nothing failed because nothing ran proves nothing."""
    scope = evidence.scope
    passed = [case for case in scope if case.outcome is Outcome.PASS]
    if not passed:
        skipped = sum(case.outcome is Outcome.SKIP for case in scope)
        many = f"{skipped} of its {len(scope)} cases were skipped" if scope else "the report has none of its cases"
        yield reject("G06", f"Nothing of profile {evidence.profile} was verified: {many}, and none passed.")
        return
    for name in contained(evidence.profile):
        if not any(PROFILES[name].own(case.facts) for case in passed):
            yield reject("G06", f"No case of profile {name}'s own passed, so the run says nothing of it.")


def check_flaky(evidence: Evidence) -> Iterator[Finding]:
    """G16: not more cases are waived as flaky than the profile allows."""
    flaky, allowed = evidence.settled.flaky, evidence.policy.max_flaky
    if len(flaky) > allowed:
        sentence = (
            f"{len(flaky)} cases are waived as flaky; profile {evidence.profile} allows {allowed}: {named(flaky)}."
        )
        yield reject("G16", sentence, flaky)
    elif flaky:
        yield note("G16", f"{counted(len(flaky), 'case is', 'cases are')} waived as flaky: {named(flaky)}.", flaky)
