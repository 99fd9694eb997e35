"""The gate: a pure function from evidence to a decision."""

from __future__ import annotations

from conformance.reports.gate.evidence import Evidence
from conformance.reports.gate.finding import Decision
from conformance.reports.gate.outcomes import is_due, unmet
from conformance.reports.gate.rules import RULES


def decide(evidence: Evidence) -> Decision:
    """What the sixteen rules find; rejections come first, then in the order of the rules."""
    findings = [finding for rule in RULES.values() for finding in rule.check(evidence)]
    groups = [group for group in evidence.groups if is_due(group)]
    due = sum(len(group.cases) for group in groups)
    return Decision(
        accelerator=evidence.report.accelerator.name,
        profile=evidence.profile,
        findings=tuple(sorted(findings, key=lambda one: one.severity.value != "reject")),
        due=due,
        met=due - sum(len(unmet(group, evidence)) for group in groups),
    )
