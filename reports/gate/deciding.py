"""The gate: a pure function from evidence to a decision."""

from __future__ import annotations

from conformance.reports.gate.evidence import Evidence
from conformance.reports.gate.finding import Decision
from conformance.reports.gate.outcomes import is_due, is_met
from conformance.reports.gate.rules import RULES


def decide(evidence: Evidence) -> Decision:
    """What the sixteen rules find; rejections come first, then in the order of the rules."""
    findings = [finding for rule in RULES.values() for finding in rule.check(evidence)]
    due = [case for case in evidence.scope if is_due(case)]
    return Decision(
        accelerator=evidence.report.accelerator.name,
        profile=evidence.profile,
        findings=tuple(sorted(findings, key=lambda one: one.severity.value != "reject")),
        due=len(due),
        met=sum(is_met(case, evidence) for case in due),
    )
