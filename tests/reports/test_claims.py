"""Claims are verified by passing cases, and by nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conformance.reports.declaration.claims import check_claims
from conformance.reports.model import AcceleratorRecord, CaseRecord, DeclarationRecord, DeclaredCell, Report, Run, Suite
from conformance.reports.verdict import Outcome, Reason


def report(*claims: str, cases: tuple[CaseRecord, ...]) -> Report:
    cells = tuple(DeclaredCell(cell, "supported", "native") for cell in claims)
    run = Run("r", "", Suite("1", "0" * 64, len(cases)))
    return Report(run, AcceleratorRecord("x"), declaration=DeclarationRecord("", cells), cases=cases)


def case(cell: str, outcome: Outcome = Outcome.PASS, reason: Reason = Reason.NATIVE) -> CaseRecord:
    return CaseRecord(f"area.{cell}", "area", requires=(cell,), outcome=outcome, reason=reason)


@pytest.mark.parametrize(
    ("claim", "exercised", "verified"),
    [
        ("stream", "stream", True),
        ("stream", "stream.order", False),
        ("dtype[float16]", "dtype[float16]", True),
        ("dtype[float16]", "dtype[float32]", False),
        ("operators.*[float32-training]", "operators.add[float32-training]", True),
        ("operators.*[float32-training]", "operators.add[float32-inference]", False),
    ],
)
def test_a_passing_case_verifies_its_own_claim(claim: str, exercised: str, verified: bool) -> None:
    check = check_claims(report(claim, cases=(case(exercised),)))

    assert (claim in check.verified, claim in check.unverified) == (verified, not verified)


@pytest.mark.parametrize(("outcome", "reason"), [(Outcome.FAIL, Reason.WRONG), (Outcome.SKIP, Reason.ENVIRONMENT)])
def test_a_failure_and_a_skip_verify_nothing(outcome: Outcome, reason: Reason) -> None:
    check = check_claims(report("stream", cases=(case("stream", outcome, reason),)))

    assert check.unverified == ("stream",)
    assert check.total == 1


def test_a_claim_is_verified_only_where_it_is_the_one_that_holds() -> None:
    every, linalg = "operators.*[float32-inference]", "operators.linalg.*[float32-inference]"

    check = check_claims(report(every, linalg, cases=(case("operators.linalg.det[float32-inference]"),)))

    assert (check.verified, check.unverified) == ((linalg,), (every,))


def test_a_pattern_is_not_verified_by_a_cell_that_is_claimed_by_name() -> None:
    every, add = "operators.*[float32-inference]", "operators.add[float32-inference]"

    check = check_claims(report(every, add, cases=(case(add),)))

    assert (check.verified, check.unverified) == ((add,), (every,))


def test_a_declaration_that_contradicts_itself_verifies_nothing_and_still_gets_its_view() -> None:
    contradicting = (DeclaredCell("operators.a*", "supported", "native"), DeclaredCell("operators.*d", "unsupported"))
    odd = replace(report(cases=(case("operators.add"),)), declaration=DeclarationRecord("", contradicting))

    assert check_claims(odd).unverified == ("operators.a*",)
