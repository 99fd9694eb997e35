"""Stand-ins for the bundled suites, so that these tests import no suite."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from conformance.accelerators.capabilities import RNG_STATE, Cell
from conformance.plan.bundled import BundledCase
from conformance.plan.case import Case, Level, Tier
from conformance.reports.planned import PlannedCase


def check_state() -> None:
    """Restoring a saved state repeats the same numbers."""


def _planned(case: Case) -> BundledCase:
    return BundledCase(case, check_state, Path("conformance/suites/x/test_it.py"), 12)


CASES = [
    _planned(Case("accelerator.device.count", "accelerator", level=Level.CORE)),
    _planned(Case("accelerator.rng.state_roundtrip", "accelerator", requires=(RNG_STATE.cell,))),
    *(
        _planned(
            Case(
                f"operators.add[{dtype}-{mode}]",
                "operators",
                axes=(("dtype", dtype), ("mode", mode)),
                requires=(Cell("operators.add", dtype, mode),),
                adaptive=True,
            )
        )
        for dtype in ("float32", "int8")
        for mode in ("inference", "training")
    ),
    _planned(Case("operators.add[float32-deep]", "operators", tier=Tier.DEEP, axes=(("dtype", "float32"),))),
    _planned(Case("workloads.gpt", "workloads", tier=Tier.WORKLOAD)),
]
USUAL = [planned for planned in CASES if planned.case.tier is not Tier.DEEP]


def use_stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    def bundled_cases(areas: Iterable[str] | None = None, *, deep: bool = False) -> list[BundledCase]:
        chosen = None if areas is None else set(areas)
        return [planned for planned in (CASES if deep else USUAL) if chosen is None or planned.case.area in chosen]

    def known_cases(areas: Iterable[str] | None = None) -> list[PlannedCase]:
        return [bundled.case.planned for bundled in bundled_cases(areas, deep=True)]

    monkeypatch.setattr("conformance.plan.bundled.bundled_cases", bundled_cases)
    monkeypatch.setattr("conformance.plan.known_cases.known_cases", known_cases)
    monkeypatch.setattr(
        "conformance.plan.bundled.area_names", lambda: ["accelerator", "operators", "profiling", "workloads"]
    )
