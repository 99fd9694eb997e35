"""Tests of the verdict for each declaration and observation, and of the effect of strictness."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conformance.accelerators.capabilities import COPY, RNG, STREAM, Cell
from conformance.accelerators.declaration import UNDECLARED, Claim, Declaration, Detail, State, supported, unsupported
from conformance.judging.observation import Observation, Seen
from conformance.judging.verdicts import gate, judge, judge_death
from conformance.plan.case import Case, Level
from conformance.plan.run_options import Strictness
from conformance.reports.verdict import Reason, Verdict

CELL = Cell("operators.add", "float32", "inference")
ADAPTIVE = Case("operators.add[float32-inference]", "operators", adaptive=True, requires=(CELL,))
YES, NO, HOST = supported(), unsupported("no unit for it"), supported(Detail.HOST)


def declared(claim: Claim, cell: Cell = CELL) -> Declaration:
    return Declaration.of([] if claim is UNDECLARED else [(cell, claim)])


@pytest.mark.parametrize(
    ("claim", "seen", "expected"),
    [
        (YES, Observation(Seen.RIGHT), "pass native"),
        (supported(Detail.EMULATED), Observation(Seen.RIGHT), "pass emulated"),
        (supported(Detail.HOST), Observation(Seen.RIGHT), "pass emulated"),
        (YES, Observation(Seen.WRONG, "2 is not 3"), "fail wrong"),
        (YES, Observation(Seen.NOT_IMPLEMENTED), "fail over-declared"),
        (YES, Observation(Seen.REFUSED), "fail over-declared"),
        (YES, Observation(Seen.RAISED), "fail raised"),
        (YES, Observation(Seen.SUITE_ERROR), "fail suite-error"),
        (NO, Observation(Seen.SUITE_ERROR), "fail suite-error"),
        (YES, Observation(Seen.FINDING, "no effect", Reason.STUB), "fail stub"),
        (YES, Observation(Seen.FINDING, "on the host", Reason.FALLBACK), "fail fallback"),
        (HOST, Observation(Seen.FINDING, "on the host", Reason.FALLBACK), "pass emulated"),
        (HOST, Observation(Seen.FINDING, "no effect", Reason.STUB), "fail stub"),
        (NO, Observation(Seen.FINDING, "no effect", Reason.STUB), "skip unsupported"),
        (NO, Observation(Seen.FINDING, "on the host", Reason.FALLBACK), "skip under-declared"),
        (NO, Observation(Seen.FINDING, "compared nothing", Reason.WRONG), "fail unsafe"),
        (NO, Observation(Seen.REFUSED), "skip unsupported"),
        (NO, Observation(Seen.RAISED), "skip unsupported"),
        (NO, Observation(Seen.NOT_IMPLEMENTED), "skip unsupported"),
        (NO, Observation(Seen.RIGHT), "skip under-declared"),
        (NO, Observation(Seen.WRONG), "fail unsafe"),
        (UNDECLARED, Observation(Seen.RIGHT), "skip undeclared"),
        (UNDECLARED, Observation(Seen.WRONG), "skip undeclared"),
        (UNDECLARED, Observation(Seen.RAISED), "skip undeclared"),
        (NO, Observation(Seen.ENVIRONMENT), "skip environment"),
        (YES, Observation(Seen.ENVIRONMENT), "skip environment"),
    ],
)
def test_declared_and_observed(claim: Claim, seen: Observation, expected: str) -> None:
    assert text(judge(ADAPTIVE, declared(claim), seen, Strictness.CI)) == expected


LACKS = Observation(Seen.NOT_IMPLEMENTED, "torch.acme has no member 'manual_seed_all'", missing="manual_seed_all")


@pytest.mark.parametrize("strictness", Strictness)
def test_a_missing_member_is_a_finding_of_the_cases_about_it(strictness: Strictness) -> None:
    seeds = Case("accelerator.rng.seed_all_repeats", "accelerator", requires=(RNG.cell,), level=Level.CORE)
    draws = Case("operators.rand[float32-inference]", "operators", adaptive=True, requires=(CELL,))

    own, other = (judge(case, declared(YES), LACKS, strictness) for case in (seeds, draws))

    assert (text(own), text(other)) == ("fail core-missing", "skip environment")
    assert "manual_seed_all" in other.message


def test_a_missing_member_that_no_case_is_about_stays_a_failure() -> None:
    assert text(judge(ADAPTIVE, declared(YES), replace(LACKS, missing="acme_turbo"), Strictness.CI)) == (
        "fail over-declared"
    )
    assert text(judge(ADAPTIVE, declared(NO), LACKS, Strictness.CI)) == "skip unsupported"


@pytest.mark.parametrize(
    ("claim", "seen", "bring_up", "certify"),
    [
        (YES, Seen.NOT_IMPLEMENTED, "skip over-declared", "fail over-declared"),
        (YES, Seen.WRONG, "fail wrong", "fail wrong"),
        (NO, Seen.RIGHT, "skip under-declared", "fail under-declared"),
        (UNDECLARED, Seen.RIGHT, "skip undeclared", "fail undeclared"),
        (NO, Seen.REFUSED, "skip unsupported", "skip unsupported"),
    ],
)
def test_strictness(claim: Claim, seen: Seen, bring_up: str, certify: str) -> None:
    assert text(judge(ADAPTIVE, declared(claim), Observation(seen), Strictness.BRING_UP)) == bring_up
    assert text(judge(ADAPTIVE, declared(claim), Observation(seen), Strictness.CERTIFY)) == certify


def test_certify_fails_every_undeclared_cell_also_of_cases_that_do_not_run() -> None:
    case = Case("capabilities.stream", "capabilities", requires=(STREAM.cell,))

    silent = gate(case, Declaration(), Strictness.CERTIFY)
    refused = gate(case, declared(NO, STREAM.cell), Strictness.CERTIFY)

    assert silent is not None
    assert refused is not None
    assert text(silent) == "fail undeclared"
    assert text(refused) == "skip unsupported"
    assert gate(case, declared(YES, STREAM.cell), Strictness.CERTIFY) is None


@pytest.mark.parametrize(("claim", "expected"), [(UNDECLARED, "fail undeclared"), (YES, "skip environment")])
def test_certify_fails_an_undeclared_cell_that_the_machine_cannot_probe(claim: Claim, expected: str) -> None:
    seen = Observation(Seen.ENVIRONMENT, "no memory")

    assert text(judge(ADAPTIVE, declared(claim), seen, Strictness.CERTIFY)) == expected


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        (None, "fail crash"),
        (State.SUPPORTED, "fail crash"),
        (State.UNSUPPORTED, "fail unsafe"),
        (State.UNDECLARED, "skip undeclared"),
    ],
)
def test_a_death_is_judged_by_the_claim(claim: State | None, expected: str) -> None:
    assert text(judge_death(claim, Reason.CRASH, "SIGSEGV", Strictness.CI)) == expected


@pytest.mark.parametrize(
    ("seen", "word"),
    [
        (Observation(Seen.RIGHT), "right"),
        (Observation(Seen.RAISED, "RuntimeError: no"), "raised"),
        (Observation(Seen.FINDING, "no effect", Reason.STUB), "stub"),
    ],
)
def test_what_a_probe_of_a_silence_saw_is_kept_beside_the_message(seen: Observation, word: str) -> None:
    assert judge(ADAPTIVE, declared(UNDECLARED), seen, Strictness.CERTIFY).metrics == {"probe": word}
    assert judge_death(State.UNDECLARED, Reason.HANG, "", Strictness.CI).metrics == {"probe": "hang"}


def test_the_gate_names_the_missing_capability() -> None:
    case = Case("accelerator.stream.order", "accelerator", requires=(STREAM.cell,))

    silent = gate(case, Declaration(), Strictness.CI)
    refused = gate(case, declared(NO, STREAM.cell), Strictness.CI)
    allowed = gate(case, declared(YES, STREAM.cell), Strictness.CI)

    assert silent is not None
    assert (text(silent), silent.message) == ("skip undeclared", "stream is not declared")
    assert refused is not None
    assert (text(refused), refused.message) == ("skip unsupported", "stream is declared unsupported: no unit for it")
    assert allowed is None


def test_core_cannot_be_declared_away() -> None:
    case = Case("accelerator.copy.bits", "accelerator", level=Level.CORE, requires=(COPY.cell,))
    away = declared(NO, COPY.cell)

    assert gate(case, away, Strictness.CI) is None
    assert text(judge(case, away, Observation(Seen.NOT_IMPLEMENTED), Strictness.BRING_UP)) == "fail core-missing"


def test_a_pattern_claims_no_more_than_the_reference_has() -> None:
    pattern = declared(YES, Cell("operators.*", "float32", "inference"))

    assert pattern.claim(CELL).state is State.SUPPORTED
    assert pattern.claim(CELL, in_reference=False).state is State.UNDECLARED


def text(verdict: Verdict) -> str:
    return f"{verdict.outcome.value} {verdict.reason.value}"


@pytest.mark.parametrize(
    ("claim", "missing", "expected"),
    [
        (NO, "memory_allocated", "skip environment"),
        (NO, "reset_peak_memory_stats", "skip environment"),
        (NO, "empty_cache", "fail core-missing"),
        (UNDECLARED, "memory_allocated", "fail core-missing"),
    ],
)
def test_byte_counts_that_are_denied_are_no_missing_core(claim: Claim, missing: str, expected: str) -> None:
    case = Case("accelerator.memory.numbers[x]", "accelerator", level=Level.CORE, requires=(Cell("memory"),))
    observed = Observation(Seen.NOT_IMPLEMENTED, f"torch.acme has no member {missing!r}", missing=missing)

    assert text(judge(case, declared(claim, Cell("memory.stats")), observed, Strictness.CI)) == expected
