"""Claims are verified by passing cases, and by nothing else."""

from __future__ import annotations

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
