"""Rules of the gate, and its decision.

Every module in this folder has ``RULES``: what each rule requires, why, and what to do when it rejects. A new rule is a
new entry there, or a new module.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Final

from conformance.errors import UnknownName
from conformance.reports.gate.evidence import GateEvidence
from conformance.reports.gate.finding import Decision, GateSeverity, Rule


def _discovered() -> Iterator[Rule]:
    for module in pkgutil.iter_modules(__path__):
        yield from importlib.import_module(f"{__name__}.{module.name}").RULES


#: Every rule by its id, in the order of the ids.
RULES: Final = {rule.id: rule for rule in sorted(_discovered(), key=lambda rule: rule.id)}


def find_rule(id: str) -> Rule:
    """Return the rule of that id, in upper or lower case; UnknownName with suggestions if there is none."""
    if id.upper() not in RULES:
        raise UnknownName("gate rule", id, RULES)
    return RULES[id.upper()]


def decide(evidence: GateEvidence) -> Decision:
    """Return the findings of all rules as a decision: rejections first, then in the order of the rules."""
    findings = [finding for rule in RULES.values() for finding in rule.check(evidence)]
    unmet = sum(len(evidence.unmet(group)) for group in evidence.due)
    due = sum(len(group.cases) for group in evidence.due)
    return Decision(
        accelerator=evidence.report.accelerator.name,
        profile=evidence.profile,
        findings=tuple(sorted(findings, key=lambda finding: finding.severity is not GateSeverity.REJECT)),
        due=due,
        met=due - unmet,
    )
