"""The plan of the stand-in: in its dtypes it executes nearly all of every area on ranks."""

from __future__ import annotations

from functools import cache

import pytest

from conformance.accelerators.backends import builtin_names
from conformance.accelerators.registry import resolve
from conformance.base.claim_lookup import ClaimLookup
from conformance.cli.manifest import current
from conformance.reports.model import AcceleratorRecord, CaseRecord, DeclarationRecord, DeclaredCell, Report, Run, Suite
from conformance.reports.planned import PlannedCase
from conformance.reports.verdict import Outcome, Reason
from conformance.reports.views import breadth

ON_RANKS = (
    "checkpoint",
    "compression",
    "model_parallelism",
    "moe",
    "pipe",
    "runtime",
    "sequence_parallelism",
    "ulysses_alst",
)


@cache
def plan() -> tuple[PlannedCase, ...]:
    return tuple(current().cases.values())


@cache
def planned_report(name: str) -> Report:
    """The report of a device that passes all that its built-in declaration claims, of the plan of this suite."""
    claims = resolve(name).static_declaration.cells.items()
    cells = tuple(
        DeclaredCell(str(c), claim.state.value, claim.detail.value if claim.detail else "") for c, claim in claims
    )
    lookup = ClaimLookup((row.cell, row.state, row.detail) for row in cells)
    cases = tuple(case_of(planned, lookup) for planned in plan())
    run = Run("planned", "2026-01-01T00:00:00+00:00", Suite("0.1.0", "", len(cases)))
    return Report(run, AcceleratorRecord(name), declaration=DeclarationRecord("", cells), cases=cases)


def case_of(planned: PlannedCase, lookup: ClaimLookup) -> CaseRecord:
    claims = [lookup.find(cell, planned.in_reference) for cell in planned.requires]
    if planned.level != "core" and any(claim.state != "supported" for claim in claims):
        return CaseRecord(**vars(planned), outcome=Outcome.SKIP, reason=Reason.UNDECLARED)
    emulated = any(claim.detail != "native" for claim in claims)
    return CaseRecord(**vars(planned), reason=Reason.EMULATED if emulated else Reason.NATIVE)


@pytest.mark.parametrize("area", ON_RANKS)
def test_the_stand_in_executes_nearly_all_of_every_area_on_ranks(area: str) -> None:
    found = breadth.executions(planned_report("supa"))[area]

    assert found.on_ranks
    assert found.share >= 0.9, found


def test_the_profile_says_what_the_stand_in_is() -> None:
    report = planned_report("supa")
    shown = breadth.render(report)

    assert report.badge == "full"
    assert f"supa: profile full · {report.breadth}" in shown
    assert report.breadth.claimed < 0.6 * report.breadth.planned
    assert {"float32", "float16", "bfloat16"} <= breadth.declared_dtypes(report)
    assert "float64" not in breadth.declared_dtypes(report)


@pytest.mark.parametrize(
    ("name", "profile"), [("cuda", "full"), ("sim", "full"), ("cpu", "full"), ("xpu", "full"), ("mps", "training")]
)
def test_what_the_declarations_can_earn(name: str, profile: str) -> None:
    assert planned_report(name).badge == profile


def test_every_backend_can_earn_more_than_the_core() -> None:
    assert {name for name in builtin_names() if planned_report(name).badge in (None, "core")} == set()
