"""The page of the areas is complete: each area of DeepSpeed has cases here, or a reason."""

from __future__ import annotations

import functools

import pytest

from conformance.plan.bundled import area_names, bundled_cases

from . import areas, known_gaps

FACTS = areas.facts()


@functools.cache
def planned_ids() -> list[str]:
    """Return the ids of every bundled case. A plan takes a second."""
    return [planned.case.id for planned in bundled_cases()]


def test_every_folder_of_deepspeed_is_described():
    assert set(FACTS) == set(known_gaps.DEEPSPEED_AREAS)


@pytest.mark.parametrize("area", sorted(FACTS))
def test_a_description_says_what_is_missing_and_why(area):
    known = FACTS[area]

    assert known["functions"] > 0
    assert known["deepspeed"].endswith(".")
    assert known["missing"]
    assert all(len(pair) == 2 and all(pair) for pair in known["missing"])


@pytest.mark.parametrize("area", [area for area in sorted(FACTS) if "covered" in FACTS[area]])
def test_a_subject_names_cases_of_its_area(area):
    ids = planned_ids()

    # A subject may be covered by another area.
    for subject, named in FACTS[area]["covered"]:
        assert subject
        for name in named:
            assert any(id == name or id.startswith(f"{name}[") for id in ids), f"{name} is no case"


def test_every_area_of_the_mission_has_a_case():
    there = areas.checks_of([planned.case for planned in bundled_cases()])

    assert set(FACTS) - set(there) == {"sequence"}
    assert set(area_names()) == set(there)
