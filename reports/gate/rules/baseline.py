"""G07, G11: comparison with an accepted report, case by case and claim by claim. Counts are never compared."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from conformance.base.claim_lookup import SUPPORTED, ClaimLookup, FoundClaim
from conformance.reports.declaration.claims import claims_of, self_contradiction
from conformance.reports.gate.evidence import GateEvidence
from conformance.reports.gate.finding import GateFinding, Rule, counted, named, note, reject
from conformance.reports.gate.manifests import torch_series
from conformance.reports.model import CaseRecord, Report
from conformance.reports.plain_text import one_line
from conformance.reports.verdict import Outcome, Reason

#: One of so many cases may be new in a release of the suite or of torch.
_NEW_IN = 4


def check_regressions(evidence: GateEvidence) -> Iterator[GateFinding]:
    """Return findings of G07: cases that passed in the baseline and do not pass now."""
    baseline = evidence.baseline
    if baseline is None:
        return
    yield from _check_comparable(evidence, baseline)
    worse: dict[str, list[str]] = defaultdict(list)
    for case in baseline.cases:
        if case.outcome is Outcome.PASS and (kind := _regression(case, evidence)):
            worse[kind].append(case.id)
    for kind, ids in worse.items():
        n = counted(len(ids), "case that passed in the baseline is", "cases that passed in the baseline are")
        yield reject("G07", f"{n} now {kind}: {named(ids)}.", ids)


def _check_comparable(evidence: GateEvidence, baseline: Report) -> Iterator[GateFinding]:
    """Reject a baseline of another accelerator, and note one that is the report itself."""
    report = evidence.report
    names = [one_line(one.accelerator.name, 60) for one in (report, baseline)]
    if names[0] != names[1]:
        yield reject("G07", f"The baseline is of {names[1]}, the report of {names[0]}: they cannot be compared.")
    yield from _check_breadth(evidence, baseline)
    if report.run.id == baseline.run.id:
        yield note("G07", "The baseline is the same run as the report, so nothing can have become worse.")


def _check_breadth(evidence: GateEvidence, baseline: Report) -> Iterator[GateFinding]:
    """Reject a baseline that contradicts itself, or that is narrower than the profile: it hides what became worse.

    A baseline of another version of the suite or of torch lacks the cases that are new. It needs most of the others.
    """
    planned = len(baseline.cases) + len(baseline.accounting.unaccounted)
    if baseline.totals != baseline.counts or baseline.run.suite.cases != planned:
        yield reject("G07", "The counts of the baseline are not those of its cases.")
    if selecting := baseline.run.invocation.selection:
        yield reject("G07", f"The baseline's run left cases out by {named(selecting)}.")
    if lost := [case.id for case in baseline.accounting.unaccounted]:
        yield reject("G07", f"{counted(len(lost), 'case')} of the baseline had no verdict: {named(lost)}.", lost)
    known = {case.id for case in baseline.cases} | {case.id for case in baseline.accounting.unaccounted}
    missing = sorted(evidence.required - known)
    runs = [(one.run.suite.version, torch_series(one.accelerator.torch)) for one in (evidence.report, baseline)]
    allowed = 0 if runs[0] == runs[1] else len(evidence.required) // _NEW_IN
    if len(missing) > allowed:
        words = (
            f"{len(missing)} of the {counted(len(evidence.required), 'case')} that profile {evidence.profile} requires"
        )
        yield reject("G07", f"The baseline is narrower than the report: it lacks {words}: {named(missing)}.", missing)


def _regression(before: CaseRecord, evidence: GateEvidence) -> str | None:
    """Return how a case that passed ends now, or None if that is not worse. A validly waived failure is not worse."""
    now = evidence.cases.get(before.id)
    if now is None:
        return "missing" if evidence.is_planned(before.id) and _is_asked(before.id, evidence) else None
    stale = now.reason is Reason.WAIVER_STALE and evidence.had_waivers
    if now.outcome is Outcome.PASS or stale or before.id in evidence.waiver_outcome.waived:
        return None
    word = "skipped" if now.outcome is Outcome.SKIP else "failing"
    return f"{word} ({now.reason.value})"


def _is_asked(id: str, evidence: GateEvidence) -> bool:
    return evidence.manifest is None or id in evidence.required


def check_claims(evidence: GateEvidence) -> Iterator[GateFinding]:
    """Return findings of G11: cells that the baseline declares supported, and the report does not, or less natively."""
    if evidence.baseline is None:
        return
    before, now = claims_of(evidence.baseline), evidence.claims
    if contradiction := self_contradiction(evidence.baseline, before):
        yield reject("G11", f"The declaration of the baseline {contradiction}")
    withdrawn: dict[str, list[str]] = defaultdict(list)
    for cell, in_reference in _cells(evidence.baseline, before, evidence):
        was = before.find(cell, in_reference)
        if was.state == SUPPORTED and (change := _shrunk(was, now.find(cell, in_reference))):
            withdrawn[change].append(cell)
    for change, cells in withdrawn.items():
        n = counted(len(cells), "cell that the baseline claims is", "cells that the baseline claims are")
        yield reject("G11", f"{n} {change}: {named(cells)}.", cells)


def _cells(baseline: Report, claims: ClaimLookup, evidence: GateEvidence) -> dict[tuple[str, bool], None]:
    """Return every cell that the baseline can have claimed: those its cases require, and those it names."""
    found = dict.fromkeys((cell, True) for cell in claims.exact_cells)
    for case in baseline.cases:
        if evidence.is_planned(case.id):
            found.update(dict.fromkeys((cell, case.in_reference) for cell in case.requires))
    return found


def _shrunk(was: FoundClaim, now: FoundClaim) -> str | None:
    """Return how a claim became weaker, as the end of a sentence, or None."""
    if now.state != SUPPORTED:
        return f"now {one_line(now.state, 40)}"
    if was.detail in ("", "native") and now.detail not in ("", "native"):
        return f"now only supported as {one_line(now.detail, 40)}"
    return None


RULES = (
    Rule(
        "G07",
        title="regressions",
        requirement="Every case that passed in the baseline passes now. Skipped or missing is worse than passed. The "
        "baseline is complete, consistent, and at least as broad as the profile.",
        why="Equal counts hide a new failure behind a fixed one.",
        fix="Fix the regression, or agree to it: with a waiver, or by accepting a new baseline.",
        check=check_regressions,
    ),
    Rule(
        "G11",
        title="withdrawn claims",
        requirement="Every cell that the baseline declares supported is still declared supported, and natively if it "
        "was native.",
        why="Without this rule, dropping an operator from the declaration would turn its failures into skips.",
        fix="Claim it again, or agree to the loss by accepting a new baseline.",
        check=check_claims,
    ),
)
