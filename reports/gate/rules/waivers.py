"""G09, G10: the waivers are valid, and each of them is still needed."""

from __future__ import annotations

from collections.abc import Iterator

from conformance.reports.gate.evidence import GateEvidence
from conformance.reports.gate.finding import GateFinding, Rule, counted, named, reject
from conformance.reports.plain_text import one_line


def check_waivers(evidence: GateEvidence) -> Iterator[GateFinding]:
    """Return findings of G09: waivers that are expired, incomplete, too long, or for the core."""
    today = evidence.now.date()
    for waiver in evidence.waivers:
        for fault in waiver.faults(today):
            yield reject("G09", f"The waiver of {one_line(waiver.name, 160)} {one_line(fault, 200)}.", waiver.cases)
    if core := evidence.waiver_outcome.core:
        n = counted(len(core), "case of the mandatory core is", "cases of the mandatory core are")
        yield reject("G09", f"{n} named by a waiver, and the core cannot be waived: {named(core)}.", core)


def check_stale(evidence: GateEvidence) -> Iterator[GateFinding]:
    """Return findings of G10: waivers that match no claimed case, and waived cases that pass."""
    settled = evidence.waiver_outcome
    if passing := tuple(settled.unexpected):
        n = counted(len(passing), "waived case passes", "waived cases pass")
        yield reject("G10", f"{n}: narrow or delete the waiver of {named(passing)}.", passing)
    if grown := tuple(settled.grown):
        n = counted(len(grown), "waived case has", "waived cases have")
        yield reject("G10", f"{n} a larger error than the waiver allows (its key error): {named(grown)}.", grown)
    for waiver in settled.idle:
        name = one_line(waiver.name, 160)
        yield reject("G10", f"The waiver of {name} matches no case that is claimed: delete it.", waiver.cases)


RULES = (
    Rule(
        "G09",
        title="invalid waivers",
        requirement="Every waiver has an owner, a ticket, a reason and an expiry date that has not passed and is at "
        "most 180 days ahead. None names a case of the core.",
        why="A waiver without an end lowers the requirement for good.",
        fix="Fix the bug and delete the waiver, or renew it with a new date and a reason: conformance waivers check.",
        check=check_waivers,
    ),
    Rule(
        "G10",
        title="needless waivers",
        requirement="Every waiver matches a claimed case, and every case that it matches still fails, with an error "
        "within the waiver's. Flaky cases may pass; each of them is named.",
        why="A waiver that is no longer needed hides the next regression. A pattern that is too wide matches "
        "cases that pass.",
        fix="Delete or narrow it: conformance waivers prune.",
        check=check_stale,
    ),
)
