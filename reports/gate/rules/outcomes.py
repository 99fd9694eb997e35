"""G06, G16: what had to pass passed or is waived, and not too much of it only now and then."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from conformance.reports.gate.evidence import Evidence
from conformance.reports.gate.finding import Finding, counted, named, note, reject
from conformance.reports.groups import CaseGroup
from conformance.reports.model import CaseRecord
from conformance.reports.profiles import PROFILES, contained
from conformance.reports.totals import idle_areas
from conformance.reports.verdict import Outcome, Reason
from conformance.reports.waivers.applying import observed


def is_due(group: CaseGroup) -> bool:
    """Whether the cases had to pass: the core always, and everything else that is claimed."""
    return group.level == "core" or group.outcome is not Outcome.SKIP or group.reason.facts.claimed


def unmet(group: CaseGroup, evidence: Evidence) -> list[CaseRecord]:
    """Those of the cases that neither passed nor failed as a valid waiver says."""
    waived = evidence.settled.waived
    if group.outcome is Outcome.PASS or group.reason is Reason.WAIVER_STALE:
        return [case for case in group.cases if case.id in waived] if waived and group.level == "core" else []
    return [case for case in group.cases if case.id not in waived or group.level == "core"]


def check_outcomes(evidence: Evidence) -> Iterator[Finding]:
    """G06: every case that is due passed or is validly waived."""
    yield from _check_something_passed(evidence)
    kinds: dict[str, list[str]] = defaultdict(list)
    for case in (case for group in evidence.groups if is_due(group) for case in unmet(group, evidence)):
        kinds[_kind(case, evidence)].append(case.id)
    for kind, ids in kinds.items():
        yield reject("G06", f"{counted(len(ids), 'case')} {kind}: {named(ids)}.", ids)
    idle = idle_areas((group.area, group.outcome, group.reason) for group in evidence.groups)
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
    if case.outcome is Outcome.SKIP and case.reason.facts.is_difference:
        return f"that are claimed did not pass ({case.reason.value})"
    return f"failed ({case.reason.value})"


def _check_something_passed(evidence: Evidence) -> Iterator[Finding]:
    """A run in which nothing failed because nothing ran proves nothing."""
    groups = evidence.groups
    passed = [group for group in groups if group.outcome is Outcome.PASS]
    if not passed:
        skipped = sum(len(group.cases) for group in groups if group.outcome is Outcome.SKIP)
        number = sum(len(group.cases) for group in groups)
        many = f"{skipped} of its {number} cases were skipped" if number else "the report has none of its cases"
        yield reject("G06", f"Nothing of profile {evidence.profile} was verified: {many}, and none passed.")
        return
    for name in contained(evidence.profile):
        if not any(PROFILES[name].own(group.first) for group in passed):
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
