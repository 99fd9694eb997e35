"""The profile ``standard``: what it holds, how it is chosen, and what a run of it says at its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.plan.known_cases import known_cases
from conformance.reports.planned import PlannedCase
from conformance.reports.profiles import DEEP, PROFILES, in_profile
from conformance.reports.standard import standard_ids
from tests.acceptance.running import run
from tests.standard.choose import Cover, claim, text


@pytest.fixture(scope="module")
def plan() -> list[PlannedCase]:
    return [planned for planned in known_cases() if planned.tier != DEEP]


def claims(planned: PlannedCase) -> set[str]:
    return set(map(claim, planned.requires))


def test_every_id_is_a_case_of_the_suite(plan: list[PlannedCase]) -> None:
    assert sorted(standard_ids() - {planned.id for planned in plan}) == []


def test_every_area_and_every_claim_has_a_case(plan: list[PlannedCase]) -> None:
    chosen = [planned for planned in plan if in_profile("standard", planned)]
    of_device = [planned for planned in plan if planned.of_device]

    assert {planned.area for planned in of_device} == {planned.area for planned in chosen}
    missing = set().union(*map(claims, of_device)) - set().union(*map(claims, chosen))
    assert sorted(missing) == []


def test_it_is_a_part_of_full_and_earns_no_badge() -> None:
    assert "standard" in PROFILES["full"].parents
    assert "core" in PROFILES["standard"].parents
    assert not PROFILES["standard"].badge


def test_a_cover_takes_what_kills_most_per_second() -> None:
    cover = Cover({"a.dear": 10.0, "a.cheap": 0.1, "a.other": 0.1})
    cover.add(1.0, ["a.dear", "a.cheap"])
    cover.add(1.0, ["a.dear", "a.other"])
    cover.add(5.0, ["a.dear"])
    cover.add(9.0, ["unknown"])

    cover.fill(1.0)
    assert cover.chosen == {"a.cheap", "a.other"}  # the dear one is beyond the budget
    assert cover.share() == pytest.approx(2 / 7)
    cover.fill(20.0)
    assert cover.share() == 1.0


def test_a_cover_takes_nothing_that_kills_nothing_more() -> None:
    cover = Cover({"a.one": 0.1, "a.two": 0.2})
    cover.add(1.0, ["a.one", "a.two"])

    cover.fill(10.0)
    assert cover.chosen == {"a.one"}


def test_the_file_names_ids_by_their_axes() -> None:
    assert text(["b.x[int8]", "a.y", "b.x[float32]"]) == '{"a.y":[""],"b.x":["float32","int8"]}'


def test_the_last_line_of_a_run_names_the_command_for_every_case(tmp_path: Path) -> None:
    ended = run("--accelerator=cpu", "--profile=standard", "--area=monitor", "-n1", cwd=tmp_path)

    assert ended.status == 0, ended.output
    lines = ended.output.strip().splitlines()
    assert lines[-2] == "every case, as badges and the gate ask for: pytest --accelerator=cpu"
    assert {case.id for case in ended.report.cases} < standard_ids() | {case.id for case in known_cases(["monitor"])}
