"""G06, G16: due cases passed or are waived, and not too many of them are flaky."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from conformance.reports.gate.evidence import GateEvidence
from conformance.reports.gate.finding import GateFinding, Rule, counted, named, note, reject
from conformance.reports.model import CaseRecord
from conformance.reports.profiles import PROFILES, contained
from conformance.reports.totals import idle_areas
from conformance.reports.verdict import Outcome, Reason
from conformance.reports.waivers.applying import observed


def check_outcomes(evidence: GateEvidence) -> Iterator[GateFinding]:
    """Return findings of G06: due cases that neither passed nor are validly waived."""
    yield from _check_something_passed(evidence)
    kinds: dict[str, list[str]] = defaultdict(list)
    for case in (case for group in evidence.due for case in evidence.unmet(group)):
        kinds[_kind(case, evidence)].append(case.id)
    for kind, ids in kinds.items():
        yield reject("G06", f"{counted(len(ids), 'case')} {kind}: {named(ids)}.", ids)
    idle = idle_areas((group.area, group.outcome, group.reason) for group in evidence.groups if group.first.of_device)
    if idle:
        yield reject("G06", f"Areas with claims in which nothing ran: {named(idle)}.")


def _kind(case: CaseRecord, evidence: GateEvidence) -> str:
    """Return what is wrong with an unmet case, as the middle of a sentence."""
    if case.level == "core" and case.outcome is Outcome.SKIP:
        return f"of the mandatory core did not pass (skip, {case.reason.value})"
    if case.id in evidence.waiver_outcome.expired:
        return "failed with a waiver that has expired"
    if case.reason is Reason.WAIVER_STALE:
        return "has a verdict about a waiver (waiver-stale), and the run was typed without --waivers"
    if case.reason is Reason.WAIVED:
        found = observed(case)
        kind = f"({found.value})" if found else "(the report does not say how)"
        return f"failed {kind} and were waived by the run, but not by a waiver of this gate"
    if case.outcome is Outcome.SKIP and case.reason is Reason.ENVIRONMENT:
        return "that are claimed could not run (environment)"
    if case.outcome is Outcome.SKIP and case.reason.facts.is_difference:
        return f"that are claimed did not pass ({case.reason.value})"
    return f"failed ({case.reason.value})"


def _check_something_passed(evidence: GateEvidence) -> Iterator[GateFinding]:
    """Return a finding if nothing passed: a run without failures may also be a run that executed nothing."""
    groups = evidence.groups
    passed = [group for group in groups if group.outcome is Outcome.PASS and group.first.of_device]
    if not passed:
        skipped = sum(len(group.cases) for group in groups if group.outcome is Outcome.SKIP)
        number = sum(len(group.cases) for group in groups)
        many = f"{skipped} of its {number} cases were skipped" if number else "the report has none of its cases"
        yield reject("G06", f"Nothing of profile {evidence.profile} was verified: {many}, and none passed.")
        return
    for name in contained(evidence.profile):
        if not any(PROFILES[name].own(group.first) for group in passed):
            yield reject("G06", f"No case passed that the profile {name} adds, so the run does not verify it.")


def check_flaky(evidence: GateEvidence) -> Iterator[GateFinding]:
    """Return findings of G16: the cases that are waived as flaky."""
    flaky, allowed = evidence.waiver_outcome.flaky, evidence.policy.max_flaky
    if len(flaky) > allowed:
        sentence = (
            f"{len(flaky)} cases are waived as flaky; profile {evidence.profile} allows {allowed}: {named(flaky)}."
        )
        yield reject("G16", sentence, flaky)
    elif flaky:
        yield note("G16", f"{counted(len(flaky), 'case is', 'cases are')} waived as flaky: {named(flaky)}.", flaky)


RULES = (
    Rule(
        "G06",
        title="failures",
        requirement="Every case of the core and every claimed case passed, or failed as a valid waiver of the gate "
        "says. At least one case passed that the profile adds.",
        why="This is what conformance means. A run that skips everything has no failures either.",
        fix="Fix the failure, withdraw the claim, or ask for a waiver. A waiver that only the run knew does not "
        "count here.",
        check=check_outcomes,
    ),
    Rule(
        "G16",
        title="flaky cases",
        requirement="At most as many cases are waived as flaky as the profile allows.",
        why="A case that fails now and then has not passed. Many of them show an unreliable device.",
        fix="Make the cases reliable; the limits are in docs/gate.md.",
        check=check_flaky,
    ),
)
