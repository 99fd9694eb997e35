"""G04, G05: the report has every required case once and as planned, and its numbers are those of its cases."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from conformance.reports.gate.evidence import GateEvidence
from conformance.reports.gate.finding import GateFinding, Rule, counted, named, reject
from conformance.reports.model import declared_sha256
from conformance.reports.planned import PlannedCase
from conformance.reports.totals import Counts
from conformance.reports.verdict import Reason


def check_cases(evidence: GateEvidence) -> Iterator[GateFinding]:
    """Return findings of G04: cases that are missing, unknown, repeated, or not described as planned."""
    yield from _check_accounting(evidence)
    if evidence.manifest is None or evidence.planned_profile:
        return  # a plan with a released hash has exactly the released cases
    planned, present = evidence.manifest.cases, evidence.cases
    lost = {planned.id for planned in evidence.report.accounting.unaccounted}
    if missing := sorted(evidence.required - present.keys() - lost):
        n = counted(len(missing), "required case is", "required cases are")
        yield reject("G04", f"{n} not in the report: {named(missing)}.", missing)
    if extra := sorted(id for id in chain(present, lost) if id not in planned):
        n = counted(len(extra), "case is", "cases are")
        yield reject("G04", f"{n} in the report and in no released plan: {named(extra)}.", extra)
    if changed := [id for id, case in present.items() if id in planned and not _is_as_planned(case, planned[id])]:
        n = counted(len(changed), "case is", "cases are")
        yield reject(
            "G04", f"{n} not described as planned (area, tier, level, axes, needs): {named(changed)}.", changed
        )


def _check_accounting(evidence: GateEvidence) -> Iterator[GateFinding]:
    """Reject planned cases without a verdict, double verdicts, and verdicts of unplanned cases."""
    accounting = evidence.report.accounting
    if lost := [planned.id for planned in accounting.unaccounted]:
        n = counted(len(lost), "planned case has", "planned cases have")
        yield reject("G04", f"{n} no verdict: {named(lost)}.", lost)
    if twice := accounting.duplicates:
        n = counted(len(twice), "case has", "cases have")
        yield reject("G04", f"{n} more than one verdict: {named(twice)}.", twice)
    if strays := accounting.unknown:
        n = counted(len(strays), "verdict was", "verdicts were")
        yield reject("G04", f"{n} not planned: {named(strays)}.", strays)


def _is_as_planned(case: PlannedCase, row: PlannedCase) -> bool:
    """Return whether the report's case has all properties of the manifest's row."""
    return (
        case.area == row.area
        and case.requires == row.requires
        and case.level == row.level
        and case.axes == row.axes
        and case.tier == row.tier
        and case.adaptive == row.adaptive
        and case.in_reference == row.in_reference
        # Reports did not always name the world size.
        and case.world_size in (None, row.world_size)
        and case.about == row.about
    )


def check_counts(evidence: GateEvidence) -> Iterator[GateFinding]:
    """Return findings of G05: counts, lists and hashes that differ from those computed from the cases."""
    report = evidence.report
    if report.totals != report.counts:
        said, found = _said(report.totals), _said(report.counts)
        yield reject("G05", f"The file says {said}, and its cases are {found}.")
    planned = len(report.cases) + len(report.accounting.unaccounted)
    if report.run.suite.cases != planned:
        yield reject("G05", f"The file says that {report.run.suite.cases} cases were planned, and holds {planned}.")
    if stray := sorted({*report.accounting.in_flight} - {planned.id for planned in report.accounting.unaccounted}):
        yield reject("G05", f"The file says of cases with a verdict that they never ended: {named(stray)}.", stray)
    if report.accounting.torn_lines < 0:
        yield reject("G05", f"The file says that {report.accounting.torn_lines} lines of the journal were torn.")
    if report.run.suite.manifest_sha256 != evidence.plan_sha256:
        yield reject("G05", "The hash of the file's cases is not that of the manifest that it names.")
    if report.declaration.sha256 != declared_sha256(report.declaration.cells):
        yield reject("G05", "The hash of the file's claims is not the one that it gives for its declaration.")
    for name, reason in (("used", Reason.WAIVED), ("stale", Reason.WAIVER_STALE)):
        listed = sorted(getattr(report.waivers, name))
        if listed != sorted(case.id for case in report.cases if case.reason is reason):
            yield reject("G05", f"The file's list of {name} waivers is not that of its cases.")


def _said(counts: Counts) -> str:
    """Return the counts as a clause for a finding."""
    return (
        f"{counts.passed} passed ({counts.aside} not about the device), {counts.skipped} skipped, "
        f"{counts.failed} failed, {counts.lost} lost "
        f"and {counts.claimed} claimed"
    )


RULES = (
    Rule(
        "G04",
        title="missing cases",
        requirement="Every case that the profile requires is in the report exactly once and is described as planned. "
        "There is no other case.",
        why="A case that is left out cannot fail.",
        fix="Run again without a selection, continue a killed run with --resume, and merge all shards.",
        check=check_cases,
    ),
    Rule(
        "G05",
        title="wrong counts",
        requirement="The counts, lists and hashes of the file equal those computed again from its cases and claims.",
        why="A file that contradicts itself was edited or damaged.",
        fix="Send the file as the run wrote it.",
        check=check_counts,
    ),
)
