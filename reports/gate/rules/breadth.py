"""G19: enough is claimed for the profile."""

from __future__ import annotations

from collections.abc import Iterator

from conformance.reports.breadth import IMPLEMENTATION
from conformance.reports.gate.evidence import GateEvidence
from conformance.reports.gate.finding import GateFinding, Rule, counted, named, reject
from conformance.reports.groups import CaseGroup
from conformance.reports.model import CaseRecord
from conformance.reports.profiles import contained
from conformance.reports.verdict import Outcome, Reason


def check_breadth(evidence: GateEvidence) -> Iterator[GateFinding]:
    """Return findings of G19: capabilities and areas of the profile that are hardly claimed, and borrowed kernels."""
    if lacks := tuple(_lacks(evidence)):
        yield reject("G19", f"Too little is claimed for the profile {evidence.profile}: {named(lacks)}.", lacks)
    borrowed = [
        case.id for group in evidence.groups if _is_native(group) for case in group.cases if _is_reference(case)
    ]
    if borrowed:
        sentence = f"{counted(len(borrowed), 'case')} passed as native with PyTorch's operators as the kernel"
        yield reject("G19", f"{sentence}: {named(borrowed)}.", borrowed)


def _lacks(evidence: GateEvidence) -> Iterator[str]:
    """Yield what the profile and those that it contains lack. An area is named once, by the largest profile."""
    results = {result.name: result for result in evidence.report.profile_results}
    named_before: set[str] = set()
    for lack in (lack for name in contained(evidence.profile) for lack in results[name].lacks):
        subject = lack.partition(" ")[0]
        if subject not in named_before:
            named_before.add(subject)
            yield lack


def _is_native(group: CaseGroup) -> bool:
    return group.area == "ops" and (group.outcome, group.reason) == (Outcome.PASS, Reason.NATIVE)


def _is_reference(case: CaseRecord) -> bool:
    return case.metrics.get(IMPLEMENTATION) == "reference"


RULES = (
    Rule(
        "G19",
        title="too little claimed",
        requirement="The profile's capabilities are claimed, and at least half of each of its areas. A kernel that is "
        "claimed as native is not PyTorch's operators.",
        why="A declaration of three cells passes everything that it claims.",
        fix="Declare what the device has, run again, or choose a smaller profile.",
        check=check_breadth,
    ),
)
