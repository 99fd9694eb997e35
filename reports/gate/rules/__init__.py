"""The sixteen rules: what each asks, what it is for, and what to do when it rejects."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from conformance.errors import UnknownName
from conformance.reports.gate.evidence import Evidence
from conformance.reports.gate.finding import Decision, Finding
from conformance.reports.gate.rules import accounting, baseline, honesty, identity, outcomes, run_facts, waivers
from conformance.reports.gate.rules.outcomes import is_due, unmet

Check = Callable[[Evidence], Iterable[Finding]]


@dataclass(frozen=True)
class Rule:
    """One rule of the gate. ``asks`` is its demand, ``why`` what would slip through without it, ``mend`` what to "
    "do."""

    id: str
    asks: str
    why: str
    mend: str
    check: Check


def _parses(_: Evidence) -> Iterable[Finding]:
    """A report that got as far as the other rules has been parsed; the command answers for the others."""
    return ()


RULES: Final = {
    rule.id: rule
    for rule in (
        Rule(
            "G01",
            "The report can be read: valid UTF-8 JSON of a known schema, no unknown or repeated key, within the "
            "size limits.",
            "Whatever cannot be read cannot be judged, and a reader that guesses can be made to guess. The exit "
            "status is 2, not 1.",
            "Send the report.json that the run wrote, unedited. Fold a journal with: conformance report FOLDER "
            "--format json.",
            _parses,
        ),
        Rule(
            "G02",
            "The suite's version is a release: the newest or the one before; one older is accepted with a note, "
            "older ones are not.",
            "An old suite does not look for what newer ones find.",
            "Install the newest release and run again.",
            identity.check_version,
        ),
        Rule(
            "G03",
            "The hash of the run's plan is that of the released manifest of the profile, or of a profile that "
            "contains it.",
            "A plan with other cases, or the same cases with lesser needs, is another suite.",
            "Run the released suite with a released torch series and no selection, or name the manifest to judge "
            "by: --manifest.",
            identity.check_manifest,
        ),
        Rule(
            "G04",
            "Every case that the profile requires is in the report exactly once, described as planned, and there "
            "is no other.",
            "A case that is left out cannot fail.",
            "Run again without selection; continue a killed run with --resume; merge all shards.",
            accounting.check_cases,
        ),
        Rule(
            "G05",
            "Counts, lists and hashes of the file, made again from its cases and claims, are those that it gives.",
            "A file that disagrees with itself was edited or torn.",
            "Send the file as the run wrote it.",
            accounting.check_counts,
        ),
        Rule(
            "G06",
            "Every case of the core and every case that is claimed passed, or failed as a valid waiver of the gate "
            "says; "
            "something of the profile's own passed at all.",
            "This is what conformance means. A run in which everything is skipped has no failures either.",
            "Fix the failure, withdraw the claim, or ask for a waiver. A waiver that only the run knew does not "
            "count here.",
            outcomes.check_outcomes,
        ),
        Rule(
            "G07",
            "What passed in the baseline passes now. Skipped or missing is worse than passed.",
            "Equal counts hide a case that broke behind one that was mended.",
            "Fix the regression, or agree to it: with a waiver, or by accepting a new baseline.",
            baseline.check_regressions,
        ),
        Rule(
            "G08",
            "Nothing is over-declared, a stub, a silent fallback or unsafe, and no verdict contradicts the "
            "declaration.",
            "A support table is worth as much as its false entries are few.",
            "Correct the declaration with: conformance suggest REPORT.",
            honesty.check_honesty,
        ),
        Rule(
            "G09",
            "Every waiver has an owner, a ticket, a reason and an end at most 180 days ahead that has not passed; "
            "none names the core.",
            "A waiver without an end is a lowered bar.",
            "Fix the bug and delete the waiver, or renew it with a new date and a reason: conformance waivers check.",
            waivers.check_waivers,
        ),
        Rule(
            "G10",
            "Every waiver matches a claimed case, and every case that it matches still fails (flaky ones may pass).",
            "A waiver that is no longer needed hides the next regression. A pattern that is too wide matches cases "
            "that pass.",
            "Delete or narrow it: conformance waivers prune.",
            waivers.check_stale,
        ),
        Rule(
            "G11",
            "What the baseline declares supported is still declared supported, and as natively.",
            "Dropping an operator from the declaration turns its failures into skips, and everything else stays green.",
            "Claim it again, or agree to the loss by accepting a new baseline.",
            baseline.check_claims,
        ),
        Rule(
            "G12",
            "The run was complete and strict: no -k, -m, --deselect or selection of this suite's, and not "
            "strictness bring-up. If the gate is told a challenge, the run was made with it.",
            "A selection is a way to leave failures out. A run without the challenge may be anybody's, or last year's.",
            "Run: pytest --accelerator=NAME, with nothing but options of workers and folders, and --challenge NONCE if "
            "there is one. Merge shards with: conformance merge.",
            run_facts.check_invocation,
        ),
        Rule(
            "G13",
            "The run has a start and an end, in order, not in the future, not older than the profile accepts and "
            "not older than "
            "its baseline, and its cases' durations fit between them.",
            "An old run says nothing of today's driver, and invented times are the easiest sign of an invented run.",
            "Run again. Set the clock of the machine: ten minutes of difference are tolerated.",
            run_facts.check_times,
        ),
        Rule(
            "G14",
            "If the gate is told who may sign, the report has a signature of one of them over exactly these bytes.",
            "Everything else in the file can be made up by whoever writes it. A signature says who answers for it.",
            "Sign with: conformance sign REPORT --key KEY. Whoever judges adds the public key to the file of "
            "allowed signers.",
            run_facts.check_signature,
        ),
        Rule(
            "G15",
            "The environment's fingerprint is that of its facts, of the torch that was tested, and the one that "
            "was asked for.",
            "A result belongs to the stack that it was seen on.",
            "Run on the stack that is to be certified, and send the file unedited.",
            run_facts.check_environment,
        ),
        Rule(
            "G16",
            "Not more cases are waived as flaky than the profile allows.",
            "A case that fails now and then has not passed; many of them are an unreliable device.",
            "Make the cases reliable; the limits are in docs/gate.md.",
            outcomes.check_flaky,
        ),
    )
}


def find_rule(id: str) -> Rule:
    """The rule of that id, in upper or lower case; an unknown one is an error with suggestions."""
    if id.upper() not in RULES:
        raise UnknownName("gate rule", id, RULES)
    return RULES[id.upper()]


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
