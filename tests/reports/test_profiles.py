"""Profiles are sets of cases, one in another."""

from __future__ import annotations

import itertools

import pytest

from conformance.errors import UnknownName
from conformance.reports.profiles import PROFILES, Tally, badge, in_profile, standings

RECORDS = [
    {"area": area, "tier": tier, "axes": axes, "level": level}
    for area, tier, level in itertools.product(("operators", "comm"), ("unit", "workload"), ("core", "standard"))
    for axes in ({}, {"dtype": "float32", "mode": "inference"}, {"dtype": "float32", "mode": "training"})
]


def record(area: str = "operators", mode: str | None = None, level: str = "standard") -> dict[str, object]:
    return {"area": area, "tier": "unit", "axes": {"mode": mode} if mode else {}, "level": level}


def tally(passed: bool = True, claimed: bool = True, failed: bool = False, **facts: str) -> Tally:
    return Tally(record(**facts), claimed, passed, failed)


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_contains_its_parents(name: str) -> None:
    for parent in PROFILES[name].parents:
        assert [r for r in RECORDS if in_profile(parent, r) and not in_profile(name, r)] == []


def test_inference_and_training_differ_by_mode_and_only_distributed_has_comm() -> None:
    training, inference, comm = record(mode="training"), record(mode="inference"), record(area="comm")

    assert [in_profile("inference", r) for r in (training, inference, comm)] == [False, True, False]
    assert [in_profile("training", r) for r in (training, inference, comm)] == [True, False, False]
    assert [in_profile("distributed", r) for r in (training, inference, comm)] == [True, False, True]
    assert all(in_profile("full", r) for r in RECORDS)


def test_a_case_on_ranks_is_distributed_whatever_its_area_and_a_probe_is_not() -> None:
    found = {
        area: [in_profile(name, {**record(area=area), "requires": ["comm", "dtype[float32]"]}) for name in PROFILES]
        for area in ("checkpoint", "capabilities")
    }

    assert found == {"checkpoint": [False, False, False, True, True], "capabilities": [False, True, True, True, True]}


def test_an_unknown_profile_is_named_with_a_suggestion() -> None:
    with pytest.raises(UnknownName, match="did you mean 'training'"):
        in_profile("trainig", record())


def test_the_badge_is_the_highest_green_profile() -> None:
    whole = [tally(level="core"), tally(mode="inference"), tally(mode="training"), tally(area="comm")]

    assert badge(standings(whole)) == "full"
    assert badge(standings([*whole, tally(area="comm", passed=False, failed=True)])) == "training"
    assert badge(standings([*whole, tally(mode="training", passed=False, failed=True)])) == "inference"
    assert badge(standings([*whole, tally(level="core", passed=False, failed=True)])) is None


def test_a_claim_that_was_not_verified_is_not_green() -> None:
    whole = [tally(level="core"), tally(mode="training"), tally(mode="inference")]

    assert badge(standings([*whole, tally(mode="training", passed=False)])) == "inference"
    assert badge(standings([*whole, tally(mode="training", passed=False, claimed=False)])) == "training"


def test_a_run_without_a_distributed_case_is_not_called_distributed() -> None:
    assert badge(standings([tally(level="core"), tally(mode="training"), tally(mode="inference")])) == "training"


def test_nothing_verified_earns_nothing() -> None:
    assert badge(standings([])) is None
    assert badge(standings([tally(level="core", passed=False, claimed=False)])) is None
