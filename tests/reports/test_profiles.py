"""Profiles are sets of cases, one in another."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from conformance.base.errors import UnknownName
from conformance.reports.groups import grouped
from conformance.reports.model import CaseRecord
from conformance.reports.planned import PlannedCase
from conformance.reports.profiles import PROFILES, badge, in_profile, profile_results
from conformance.reports.verdict import Outcome, Reason


def case(
    area: str = "operators", mode: str | None = None, level: str = "standard", ending: str = "pass native", **more: Any
) -> CaseRecord:
    outcome, reason = ending.split()
    axes = {"mode": mode} if mode else {}
    requires = ("comm",) if area == "comm" else ()
    facts = {"axes": axes, "requires": requires, "level": level, **more}
    return CaseRecord("x", area, **facts, outcome=Outcome(outcome), reason=Reason(reason))


CASES = [
    case(area=area, tier=tier, mode=mode, level=level)
    for area, tier, level in itertools.product(("operators", "comm"), ("unit", "workload"), ("core", "standard"))
    for mode in (None, "inference", "training")
]
#: A case about all collectives that the profile distributed needs.
COLLECTIVES = case(area="comm", requires=PROFILES["distributed"].needs)
FAILED, NOT_RUN, NOT_CLAIMED = "fail wrong", "skip environment", "skip unsupported"


def badge_of(*cases: CaseRecord, lost: Sequence[PlannedCase] = ()) -> str | None:
    return badge(profile_results(grouped(cases), lost))


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_contains_its_parents(name: str) -> None:
    for parent in PROFILES[name].parents:
        assert [c for c in CASES if in_profile(parent, c) and not in_profile(name, c)] == []


def test_inference_and_training_differ_by_mode_and_only_distributed_has_comm() -> None:
    training, inference, comm = case(mode="training"), case(mode="inference"), case(area="comm")

    assert [in_profile("inference", r) for r in (training, inference, comm)] == [False, True, False]
    assert [in_profile("training", r) for r in (training, inference, comm)] == [True, False, False]
    assert [in_profile("distributed", r) for r in (training, inference, comm)] == [True, False, True]
    assert all(in_profile("full", c) for c in CASES)


def test_a_case_on_ranks_is_distributed_whatever_its_area_and_a_probe_is_not() -> None:
    planned = {
        "on ranks by its needs": case("checkpoint", requires=("comm", "dtype[float32]")),
        "on ranks, which needs nothing": case("acme", world_size=2),
        "judges a collective": case("comm", requires=("comm.rooted",), adaptive=True),
        "probes for collectives": case("capabilities", requires=("comm",), adaptive=True),
        "in an area that has others on ranks": case("moe", requires=("communication",)),
    }

    found = {name: [in_profile(profile, one) for profile in PROFILES] for name, one in planned.items()}

    # core, standard, inference, training, distributed, full
    distributed, one_device = [False, False, False, False, True, True], [False, False, True, True, True, True]
    assert found == dict(zip(planned, [distributed, distributed, distributed, one_device, one_device], strict=True))


def test_an_unknown_profile_is_named_with_a_suggestion() -> None:
    with pytest.raises(UnknownName, match="did you mean 'training'"):
        in_profile("trainig", case())


def test_the_badge_is_the_highest_green_profile() -> None:
    whole = [case(level="core"), case(mode="inference"), case(mode="training"), COLLECTIVES]

    assert badge_of(*whole) == "full"
    assert badge_of(*whole, case(area="comm", ending=FAILED)) == "training"
    assert badge_of(*whole, case(mode="training", ending=FAILED)) == "inference"
    assert badge_of(*whole, case(level="core", ending=FAILED)) is None


def test_a_claim_that_was_not_verified_is_not_green() -> None:
    whole = [case(level="core"), case(mode="training"), case(mode="inference")]

    assert badge_of(*whole, case(mode="training", ending=NOT_RUN)) == "inference"
    assert badge_of(*whole, case(mode="training", ending=NOT_CLAIMED)) == "training"
    assert badge_of(*whole, lost=[case(mode="training")]) == "inference"


def test_a_run_without_a_distributed_case_is_not_called_distributed() -> None:
    assert badge_of(case(level="core"), case(mode="training"), case(mode="inference")) == "training"


def test_nothing_verified_earns_nothing() -> None:
    assert badge_of() is None
    assert badge_of(case(level="core", ending=NOT_CLAIMED)) is None
