"""Each rule of the gate: the sentence that it says, and that it is silent where nothing is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from conformance.base.errors import UnknownName
from conformance.reports.calls import NEEDS
from conformance.reports.challenge import seed_of_challenge
from conformance.reports.gate.evidence import GateEvidence, SignatureCheck
from conformance.reports.gate.finding import GateSeverity
from conformance.reports.gate.rules import RULES, decide, find_rule
from conformance.reports.model import Accounting, CaseRecord, DeclarationRecord, DeclaredCell, Report
from conformance.reports.profiles import POLICIES, find_policy
from conformance.reports.verdict import Outcome, Reason
from conformance.reports.waivers.applying import OBSERVED
from conformance.reports.waivers.model import WaiverKind

from .world import CLAIMS, NOW, PLAN, consistent, honest, manifest, operator, waiver, with_case

ADD, MUL = "operators.add[float32-training]", "operators.mul[float32-training]"


def evidence(report: Report | None = None, **changes: Any) -> GateEvidence:
    known = {"manifest": manifest(), "baseline": honest("old", days=10)}
    return GateEvidence(report or honest(), find_policy("training"), NOW, **{**known, **changes})


def found(*args: Any, **changes: Any) -> list[tuple[str, str]]:
    """The rejections, as rule and sentence."""
    return [(one.rule, one.sentence) for one in decide(evidence(*args, **changes)).rejections]


def fails(report: Report, id: str, reason: Reason = Reason.WRONG, outcome: Outcome = Outcome.FAIL) -> Report:
    return with_case(report, id, outcome=outcome, reason=reason, message=f"is {reason.value}")


def claims(*cells: DeclaredCell) -> Report:
    """The honest run with another declaration, and the verdicts that it leads to."""
    report = replace(honest(), declaration=DeclarationRecord(cells=cells))
    return consistent(report)


def test_an_honest_report_is_accepted() -> None:
    decision = decide(evidence())

    assert (decision.findings, decision.due, decision.met) == ((), 6, 6)


def test_an_honest_report_is_accepted_without_a_baseline_and_under_every_profile_that_it_can_reach() -> None:
    for profile in ("core", "inference", "training"):
        assert decide(replace(evidence(baseline=None), policy=find_policy(profile))).findings == ()


def challenged(nonce: str, seed: int) -> Report:
    """A run with a challenge, in which every passed case has an answer."""
    run = honest().run
    argv = (*run.invocation.argv, f"--challenge={nonce}")
    invocation = replace(run.invocation, argv=argv, challenge=nonce, seed=seed)
    answer = {"answer": "0123abcd=1.5"}
    cases = tuple(
        replace(case, metrics={**case.metrics, **answer}) if case.outcome is Outcome.PASS else case
        for case in honest().cases
    )
    return replace(honest(), run=replace(run, invocation=invocation), cases=cases)


@pytest.mark.parametrize(
    ("challenge", "seed", "sentence"),
    [
        ("", 0, "The run was made without a challenge."),
        (
            "another-word",
            seed_of_challenge("another-word"),
            "The run was made with the challenge another-word, not with the required one.",
        ),
        ("a-new-word", 17, "The seed of the run is not the one that its challenge gives."),
        ("a-new-word", seed_of_challenge("a-new-word"), None),
    ],
)
def test_a_challenge_that_is_asked_for_has_to_be_that_of_the_run(challenge: str, seed: int, sentence: str) -> None:
    run = honest().run
    report = challenged(challenge, seed) if challenge else replace(honest(), run=run)

    assert found(report, challenge="a-new-word") == ([("G12", sentence)] if sentence else [])


def test_the_seed_of_a_challenge_is_checked_also_if_no_challenge_is_asked_for() -> None:
    report = challenged("a-new-word", 17)

    assert found(report) == [("G12", "The seed of the run is not the one that its challenge gives.")]


# --- the five that maintainers fear most ----------------------------------------------------------------------------


def test_a_shrunk_claim_is_rejected_though_everything_else_is_green() -> None:
    kept = tuple(one for one in CLAIMS if one.cell != "workloads.gpt[float32-training]")
    report = fails(claims(*kept), "workloads.gpt[float32-training]", Reason.UNDECLARED, Outcome.SKIP)

    sentences = found(report)

    assert ("G11", "1 cell that the baseline claims is now undeclared: workloads.gpt[float32-training].") in sentences
    assert {rule for rule, _ in sentences} == {"G07", "G11"}
    assert found(report, baseline=None) == []


def test_a_run_in_which_everything_is_skipped_is_rejected() -> None:
    cases = [
        replace(one, outcome=Outcome.SKIP, reason=Reason.ENVIRONMENT, message="no device") for one in honest().cases
    ]

    sentences = found(consistent(replace(honest(), cases=tuple(cases))), baseline=None)

    nothing = "Nothing of profile training was verified: 9 of its 9 cases were skipped, and none passed."
    assert ("G06", nothing) in sentences
    assert {rule for rule, _ in sentences} == {"G06"}


def test_a_pass_that_became_a_skip_is_rejected() -> None:
    sentences = found(fails(honest(), ADD, Reason.ENVIRONMENT, Outcome.SKIP))

    assert ("G07", f"1 case that passed in the baseline is now skipped (environment): {ADD}.") in sentences
    assert {rule for rule, _ in sentences} == {"G06", "G07"}


def test_an_expired_waiver_is_rejected() -> None:
    expired = waiver(ADD, expires=NOW.date() - timedelta(days=1))

    sentences = found(fails(honest(), ADD), waivers=(expired,), baseline=None)

    assert sentences == [
        ("G06", f"1 case failed with a waiver that has expired: {ADD}."),
        ("G09", f"The waiver of {ADD} (wrong) expired on 2026-05-31."),
    ]


def test_a_deselected_run_is_rejected() -> None:
    report = honest(plan=tuple(one for one in PLAN if one.id != ADD))
    invocation = replace(report.run.invocation, argv=("--accelerator=acme", "-k", "not add"), selection=("-k",))

    sentences = found(replace(report, run=replace(report.run, invocation=invocation)), baseline=None)

    assert ("G12", "The run left cases out by -k; a profile needs a complete run.") in sentences
    assert ("G04", f"1 required case is not in the report: {ADD}.") in sentences
    assert {rule for rule, _ in sentences} == {"G03", "G04", "G12"}


# --- rule by rule ---------------------------------------------------------------------------------------------------

RELEASES = ("0.0.1", "0.0.2", "0.1.0", "0.2.0", "0.3.0")


@pytest.mark.parametrize(
    ("releases", "said", "severity"),
    [
        (RELEASES[:3], None, None),
        (RELEASES[:4], None, None),
        (RELEASES, "Suite version 0.1.0 is stale", GateSeverity.NOTE),
        ((*RELEASES, "0.4.0"), "Suite version 0.1.0 is 3 releases old; run 0.4.0.", GateSeverity.REJECT),
        (("0.2.0",), "Suite version 0.1.0 is not a release", GateSeverity.REJECT),
    ],
)
def test_g02_version(releases: tuple[str, ...], said: str | None, severity: GateSeverity | None) -> None:
    findings = decide(evidence(releases=releases)).findings

    assert [one.severity for one in findings] == ([severity] if severity else [])
    assert all(one.rule == "G02" and one.sentence.startswith(said or "") for one in findings)


def test_g03_manifest() -> None:
    smaller = manifest(PLAN[:-1])
    elsewhere = replace(manifest(), torch="2.12")

    assert [rule for rule, _ in found(manifest=None)] == ["G03"]
    assert {rule for rule, _ in found(manifest=smaller)} == {"G03", "G04"}
    assert found(manifest=elsewhere)[0][1].startswith(
        "The manifest is of suite 0.1.0 with torch 2.12, the run of suite"
    )


@pytest.mark.parametrize(("series", "there"), [(("2.7", "2.13"), "There are manifests for torch 2.7, 2.13."), ((), "")])
def test_g03_says_the_ways_out_where_there_is_no_manifest(series: tuple[str, ...], there: str) -> None:
    (sentence,) = [text for rule, text in found(manifest=None, series=series) if rule == "G03"]

    assert there in sentence
    assert "conformance manifest -o manifest.json.gz" in sentence
    assert "--manifest manifest.json.gz" in sentence


def test_g03_accepts_a_run_of_a_profile_that_contains_the_one_that_is_asked_for() -> None:
    inside = manifest().required("training")
    only_training = honest(plan=tuple(one for one in PLAN if one.id in inside))

    assert decide(replace(evidence(only_training, baseline=None), policy=find_policy("core"))).findings == ()
    assert [rule for rule, _ in found(only_training, baseline=None)] == []
    inference = decide(replace(evidence(only_training, baseline=None), policy=find_policy("inference")))
    assert {one.rule for one in inference.findings} == {"G03", "G04"}


def test_g04_accounting() -> None:
    lost = Accounting(unaccounted=(PLAN[5],), duplicates=("a", "a"), unknown=("b",))
    report = replace(honest(), accounting=lost, cases=tuple(one for one in honest().cases if one.id != PLAN[5].id))

    sentences = [sentence for rule, sentence in found(consistent(report), baseline=None) if rule == "G04"]

    assert sentences == [
        f"1 planned case has no verdict: {PLAN[5].id}.",
        "2 cases have more than one verdict: a, a.",
        "1 verdict was not planned: b.",
    ]


@pytest.mark.parametrize(
    "change", [{"level": "standard"}, {"tier": "workload"}, {"requires": ()}, {"axes": {"dtype": "int8"}}]
)
def test_g04_a_case_is_as_it_was_planned(change: dict[str, Any]) -> None:
    id = "accelerator.device"

    sentences = found(with_case(honest(), id, **change), baseline=None)

    assert any(rule == "G04" and "not described as planned" in text and id in text for rule, text in sentences)


def test_g05_counts() -> None:
    report = honest()
    edited = replace(report, totals=replace(report.totals, passed=12))

    assert [rule for rule, _ in found(edited)] == ["G05"]
    assert "The file says 12 passed" in found(edited)[0][1]


def test_g06_failures_are_told_by_reason() -> None:
    report = fails(fails(honest(), ADD), MUL, Reason.CRASH)

    assert found(report, baseline=None) == [
        ("G06", f"1 case failed (wrong): {ADD}."),
        ("G06", f"1 case failed (crash): {MUL}."),
    ]


def test_g06_the_core_is_not_skipped() -> None:
    report = fails(honest(), "accelerator.rng", Reason.ENVIRONMENT, Outcome.SKIP)

    assert found(report, baseline=None) == [
        ("G06", "1 case of the mandatory core did not pass (skip, environment): accelerator.rng.")
    ]


def test_g06_what_the_run_waived_by_itself_does_not_count() -> None:
    report = with_case(
        honest(), ADD, outcome=Outcome.SKIP, reason=Reason.WAIVED, metrics={OBSERVED: "wrong"}, message="bug"
    )
    report = replace(report, waivers=replace(report.waivers, used=(ADD,)))

    assert [rule for rule, _ in found(report, baseline=None)] == ["G06"]
    assert found(report, baseline=None, waivers=(waiver(ADD),)) == []
    assert [rule for rule, _ in found(report, baseline=None, waivers=(waiver(ADD, verdict=Reason.CRASH),))] == ["G06"]


def test_g06_a_valid_waiver_excuses_what_it_names_and_nothing_else() -> None:
    waivers = (waiver(ADD),)

    assert found(fails(honest(), ADD), waivers=waivers) == []
    assert {rule for rule, _ in found(fails(honest(), ADD, Reason.CRASH), waivers=waivers)} == {"G06", "G07"}


@pytest.mark.parametrize("reason", [Reason.OVER_DECLARED, Reason.STUB, Reason.FALLBACK])
@pytest.mark.parametrize("outcome", [Outcome.FAIL, Outcome.SKIP])
def test_g08_lies_also_where_a_lenient_run_notes_them(reason: Reason, outcome: Outcome) -> None:
    assert {"G08"} <= {rule for rule, _ in found(fails(honest(), ADD, reason, outcome), baseline=None)}


def test_g08_unsafe() -> None:
    assert (
        "G08",
        "1 case is declared unsupported and answers wrongly, crashes or hangs (unsafe): accelerator.graph.",
    ) in (found(fails(honest(), "accelerator.graph", Reason.UNSAFE), baseline=None))


@pytest.mark.parametrize("reason", [Reason.UNSUPPORTED, Reason.UNDECLARED])
def test_g08_a_skip_that_the_declaration_does_not_explain(reason: Reason) -> None:
    sentences = found(fails(honest(), ADD, reason, Outcome.SKIP), baseline=None)

    assert sentences == [("G08", f"1 case skipped as {reason.value} although the declaration says otherwise: {ADD}.")]


@pytest.mark.parametrize(
    ("called", "reason"),
    [("operators.mul[bfloat16-training]", Reason.UNDECLARED), ("operators.eig[float32-training]", Reason.UNSUPPORTED)],
)
def test_g08_a_case_may_call_an_operator_that_is_not_claimed(called: str, reason: Reason) -> None:
    changes = {"outcome": Outcome.SKIP, "reason": reason, "message": "the case calls it", "metrics": {NEEDS: called}}

    assert found(with_case(honest(), "accelerator.stream", **changes), baseline=None) == []


@pytest.mark.parametrize(
    ("id", "called"),
    [
        ("accelerator.stream", "operators.mul[float32-training]"),  # claimed
        ("accelerator.stream", "graph"),  # no operator
        ("accelerator.stream", "operators.m*[bfloat16-training]"),  # a pattern
        (ADD, "operators.eig[float32-training]"),  # a case of another operator
    ],
)
def test_g08_a_called_operator_that_excuses_nothing(id: str, called: str) -> None:
    for reason in (Reason.UNSUPPORTED, Reason.UNDECLARED):
        changes = {"outcome": Outcome.SKIP, "reason": reason, "message": "is", "metrics": {NEEDS: called}}

        said = found(with_case(honest(), id, **changes), baseline=None)

        assert said == [("G08", f"1 case skipped as {reason.value} although the declaration says otherwise: {id}.")]


def test_g08_a_pass_that_the_declaration_denies() -> None:
    report = with_case(honest(), "accelerator.graph", outcome=Outcome.PASS, reason=Reason.NATIVE, message="")

    assert [rule for rule, _ in found(report, baseline=None)] == ["G08"]


def test_g08_and_g11_a_declaration_that_contradicts_itself() -> None:
    denying = DeclaredCell("operators.*d[float32-training]", "unsupported", "hardware", "none")
    claiming = DeclaredCell("operators.a*[float32-training]", "supported", "native")
    report = claims(*CLAIMS, denying, claiming)

    sentence = (
        f"contradicts itself: {ADD} is matched by contradicting patterns of equal length: "
        "operators.*d[float32-training] is unsupported (hardware), operators.a*[float32-training] is supported "
        "(native); declare it by name."
    )
    assert ("G08", f"The declaration {sentence}") in found(report, baseline=None)
    assert ("G11", f"1 cell that the baseline claims is now contradictory: {ADD}.") in found(report)
    assert ("G11", f"The declaration of the baseline {sentence}") in found(baseline=replace(report, run=honest().run))


def test_g08_a_pattern_claims_only_what_the_reference_has() -> None:
    beyond = replace(operator("fft", "float32", "training"), in_reference=False)
    plan = (*PLAN, beyond)
    report = consistent(replace(honest(plan=plan), cases=(*honest().cases, _silent(beyond))))

    assert found(report, manifest=manifest(plan), baseline=None) == []


def _silent(one: Any) -> CaseRecord:
    return CaseRecord(**vars(one), outcome=Outcome.SKIP, reason=Reason.UNDECLARED, seconds=0.1, message="not declared")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"expires": NOW.date() + timedelta(days=181)}, "runs until 2026-11-29, which is more than 180 days ahead"),
        ({"owner": " "}, "has no owner"),
        ({"ticket": ""}, "has no ticket"),
        ({"verdict": Reason.CORE_MISSING}, "names the verdict core-missing, which cannot be waived"),
    ],
)
def test_g09_waivers(change: dict[str, Any], sentence: str) -> None:
    one = waiver(ADD, **change)

    assert ("G09", f"The waiver of {one.name} {sentence}.") in found(fails(honest(), ADD), waivers=(one,))


def test_g09_the_core_cannot_be_waived() -> None:
    sentences = found(fails(honest(), "accelerator.rng"), waivers=(waiver("accelerator.*"),), baseline=None)

    assert {"G06", "G09"} <= {rule for rule, _ in sentences}


def test_g10_a_waived_case_that_passes() -> None:
    assert found(waivers=(waiver(ADD),)) == [("G10", f"1 waived case passes: narrow or delete the waiver of {ADD}.")]


def test_g10_a_waiver_that_matches_nothing() -> None:
    assert [rule for rule, _ in found(waivers=(waiver("operators.gone[*]"),))] == ["G10"]
    assert [rule for rule, _ in found(waivers=(waiver("accelerator.graph"),))] == ["G10"]


def test_g10_a_waiver_for_another_device_is_not_looked_at() -> None:
    assert found(waivers=(waiver("operators.gone", device="Acme Two*"),)) == []
    assert [rule for rule, _ in found(waivers=(waiver("operators.gone", device="Acme O*"),))] == ["G10"]
    assert found(waivers=(waiver("operators.gone", driver="2.*"),)) == []
    assert found(waivers=(waiver("operators.gone", torch="2.12*"),)) == []


def test_g11_a_lesser_claim() -> None:
    lesser = tuple(replace(c, detail="host") if c.cell == "stream" else c for c in CLAIMS)
    report = with_case(claims(*lesser), "accelerator.stream", reason=Reason.EMULATED)

    assert found(report) == [("G11", "1 cell that the baseline claims is now only supported as host: stream.")]


def test_g12_bring_up() -> None:
    report = honest()

    assert [rule for rule, _ in found(replace(report, run=replace(report.run, strictness="bring-up")))] == [
        "G12",
        "G12",  # it was typed without --strictness
    ]


def _run(**changes: Any) -> Callable[[], Report]:
    return lambda: replace(honest(), run=replace(honest().run, **changes))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (_run(finished=""), "The run has no end"),
        (_run(started="yesterday"), "is not a date with a time zone"),
        (_run(started="2026-05-31T11:00:00"), "is not a date with a time zone"),
        (_run(started="2026-05-31T12:30:00+00:00"), "ended before it began"),
        (_run(started="2026-06-01T12:11:00+00:00", finished="2026-06-01T12:12:00Z"), "dated in the future"),
        (lambda: honest(days=91), "The run is 91 days old; profile training accepts 90."),
        (lambda: honest(days=11), "run began after the report"),
        (lambda: with_case(honest(), ADD, seconds=-1.0), "has a duration that is negative"),
        (lambda: with_case(honest(), ADD, seconds=99_999.0), "more than the run had"),
        (
            lambda: replace(honest(), cases=tuple(replace(c, seconds=0.0) for c in honest().cases)),
            "9 cases passed in 0 s",
        ),
    ],
)
def test_g13_times(make: Callable[[], Report], sentence: str) -> None:
    rejections = found(make())

    assert {rule for rule, _ in rejections} == {"G13"}
    assert any(sentence in text for _, text in rejections)


def test_g13_a_clock_that_is_a_little_wrong_is_tolerated() -> None:
    report = _run(started="2026-06-01T12:00:00+00:00", finished="2026-06-01T12:09:00+00:00")()

    assert found(report) == []


def test_g14_signature() -> None:
    assert found(signature=SignatureCheck("ada@acme.example")) == []
    assert found(signature=SignatureCheck(problem="The report is not signed.")) == [
        ("G14", "The report is not signed.")
    ]


def test_g15_environment() -> None:
    report = honest()
    edited = replace(report, environment=replace(report.environment, facts={**report.environment.facts, "cores": 1}))
    other = replace(report, accelerator=replace(report.accelerator, torch="2.13.9"))

    assert [rule for rule, _ in found(edited)] == ["G15"]
    assert {rule for rule, _ in found(other)} == {"G15"}
    assert [rule for rule, _ in found(fingerprint="ab" * 32)] == ["G15"]
    assert found(fingerprint=report.environment.fingerprint_sha256) == []


def test_g16_some_flaky_cases_are_a_note() -> None:
    flaky = waiver(ADD, MUL, kind=WaiverKind.FLAKY)

    decision = decide(evidence(fails(honest(), ADD), waivers=(flaky,)))

    assert [(one.rule, one.severity) for one in decision.findings] == [("G16", GateSeverity.NOTE)]
    assert decision.met == decision.due


def test_g16_too_many_flaky_cases() -> None:
    flaky = waiver(ADD, MUL, kind=WaiverKind.FLAKY)
    policy = replace(POLICIES["training"], max_flaky=1)

    decision = decide(replace(evidence(fails(fails(honest(), ADD), MUL), waivers=(flaky,)), policy=policy))

    assert [one.rule for one in decision.rejections] == ["G16"]
    assert POLICIES["core"].max_flaky == 0


def test_the_same_evidence_gives_the_same_decision() -> None:
    assert decide(evidence()) == decide(evidence())


def test_rules_are_found_by_id_and_say_what_to_do() -> None:
    assert list(RULES) == [f"G{n:02}" for n in range(1, 21)]
    assert find_rule("g07") is RULES["G07"]
    assert all(text.endswith(".") for rule in RULES.values() for text in (rule.requirement, rule.why, rule.fix))
    with pytest.raises(UnknownName, match="gate rule 'G77' is not registered"):
        find_rule("G77")
