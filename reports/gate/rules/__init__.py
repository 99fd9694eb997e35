"""Rules of the gate, and its decision.

Every module in this folder has ``RULES``: what each rule requires, why, and what to do when it rejects. A new rule is a
new entry there, or a new module.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from conformance.base.errors import UnknownName
from conformance.reports.gate.evidence import GateEvidence
from conformance.reports.gate.finding import Decision, GateSeverity, Rule
from conformance.reports.model import RECORDS_STACK
from conformance.reports.waivers.applying import as_passed


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
    if evidence.had_waivers and evidence.report.waivers.stale:
        # A waived case that passes needs the evidence of a pass.
        shown = replace(evidence, report=as_passed(evidence.report))
        findings += [found for rule in RULES.values() for found in rule.check(shown) if found not in findings]
    unmet = sum(1 for group in evidence.due for _ in evidence.unmet(group))
    due = sum(len(group.cases) for group in evidence.due)
    return Decision(
        accelerator=evidence.report.accelerator.name,
        profile=evidence.profile,
        findings=tuple(sorted(findings, key=lambda finding: finding.severity is not GateSeverity.REJECT)),
        due=due,
        met=due - unmet,
        run=evidence.report.run.id,
        started=evidence.report.run.started,
        finished=evidence.report.run.finished,
        signer=evidence.signer,
        waived=len(evidence.waiver_outcome.waived),
        breadth=evidence.report.breadth,
        kernels=evidence.report.kernel_origins,
        unchecked=tuple(_unchecked(evidence)),
    )


def _unchecked(evidence: GateEvidence) -> Iterator[str]:
    """Yield what this gate was not asked to check, with the option for it. An acceptance says nothing about these."""
    if evidence.signature is None:
        yield "who made the report (--allowed-signers)"
    elif evidence.signature.accelerators is None:
        yield "whether the signer may sign for this accelerator (--signers)"
    if not evidence.accelerator:
        yield "whether this is the accelerator that you expect (--accelerator)"
    if not evidence.profile_is_named:
        yield "whether this is the profile that you require (--profile)"
    if evidence.baseline is None:
        yield "whether anything became worse (--baseline)"
    if not evidence.fingerprint:
        yield "whether this is the environment that you require (--fingerprint)"
    if not evidence.challenge:
        yield "whether the run is new (--challenge)"
    if evidence.report.schema < RECORDS_STACK:
        yield "which plugins and which files of the suite ran (the report is of format 1)"
    elif evidence.suite_files != evidence.report.run.suite.files_sha256:
        yield f"whether the suite's files {evidence.report.run.suite.files_sha256[:12]} are the released ones"
    yield "whether a device computed the results (conformance challenge, or your own run)"
