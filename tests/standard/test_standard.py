"""The profile ``standard``: what it holds, how it is chosen, and what a run of it says at its end."""

from __future__ import annotations

from pathlib import Path

import pytest
import tomllib

from conformance.accelerators.capabilities import Mode
from conformance.plan.known_cases import known_cases
from conformance.reports.planned import PlannedCase
from conformance.reports.profiles import DEEP, PROFILES, in_profile
from conformance.reports.standard import standard_families, standard_ids
from conformance.reports.verdict import Outcome, Reason
from conformance.suites.operators.inputs.families import families
from tests.acceptance.running import run
from tests.faults.families import keep
from tests.faults.families import text as left_text
from tests.standard.choose import Cover, claim, in_order, kills_with, text

#: A case of an operator, and a selector of calls that the profile leaves out.
CELL, CALL = "operators.hypot[float32-inference]", "{arrangement=lazy}"
NONCE = "0123456789abcdef0123456789abcdef"


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


def test_cells_keep_the_families_that_kill_most_per_second() -> None:
    def at(name: str) -> tuple[str, str]:
        return name, "int8-inference"

    costs = {
        at("samples"): 9.0,
        at("cheap.cheap"): 0.1,
        at("a.a"): 4.0,
        at("b.b"): 4.0,
        at("c.c"): 30.0,
        at("d.d"): 35.0,
    }
    costs |= {("a.a", "bool-inference"): 4.0, ("b.b", "bool-inference"): 5.0, ("c.c", "float32-inference"): 15.0}
    faults = [(frozenset({at("a.a"), ("a.a", "bool-inference")}), 1.0), (frozenset({("b.b", "bool-inference")}), 1.0)]
    faults += [(frozenset({at("c.c")}), 3.0), (frozenset({at("unmeasured.unmeasured")}), 9.0)]
    least = {at("samples"), at("cheap.cheap"), at("a.a"), ("b.b", "bool-inference"), ("c.c", "float32-inference")}

    # Kept for any budget: one place of a family, the samples, and what is cheap. Never: what is dear and kills nothing.
    assert keep(costs, faults, budget=0.0) == least - {at("a.a")} | {("a.a", "bool-inference")}
    assert keep(costs, faults, budget=1000.0) == least | {("a.a", "bool-inference"), at("c.c")}


def test_cells_keep_a_family_that_sees_what_another_place_sees_too() -> None:
    costs = {("a.a", axes): 3.0 for axes in ("bool-inference", "int8-inference", "int16-inference")}
    faults = [(frozenset({("a.a", "bool-inference"), ("a.a", "int8-inference")}), 1.0)]

    assert keep(costs, faults, budget=6.0) == {("a.a", "bool-inference"), ("a.a", "int8-inference")}


def test_what_cells_leave_is_read_as_it_was_written() -> None:
    left = {"a.a": ["bool-inference", "int8-inference"], "b.b": ["int8-inference"]}

    assert tomllib.loads(left_text((name, axes) for name, every in left.items() for axes in every)) == left


def test_a_cover_takes_what_kills_most_per_second() -> None:
    cover = Cover({"a.dear": 10.0, "a.cheap": 0.1, "a.other": 0.1})
    cover.add(1.0, ["a.dear", "a.cheap"])
    cover.add(1.0, ["a.dear", "a.other"])
    cover.add(5.0, ["a.dear"])
    cover.add(9.0, ["unknown"])

    cover.fill(1.0)
    assert cover.chosen == {"a.cheap", "a.other"}  # the dear one is beyond the budget
    assert cover.killed() == 2.0
    cover.fill(20.0)
    assert cover.killed() == 7.0


def test_a_cover_takes_nothing_that_kills_nothing_more() -> None:
    cover = Cover({"a.one": 0.1, "a.two": 0.2})
    cover.add(1.0, ["a.one", "a.two"])

    cover.fill(10.0)
    assert cover.chosen == {"a.one"}


def test_a_family_is_chosen_in_the_cells_where_it_kills_most_per_second() -> None:
    seconds = {"int8": {"samples": 9.0, "a.a": 4.0, "b.b": 4.0}, "bool": {"samples": 9.0, "a.a": 1.0}}
    reds = [
        {"operators.x[int8]": ["samples"], "operators.x[bool]": ["a.a"]},  # the samples see it
        {"operators.x[int8]": ["a.a", "b.b"], "operators.x[bool]": ["a.a"]},
        {"operators.y[int8]": ["a.a", "b.b"]},
        {"foreach.add[int8]": ["samples"], "operators.z[int8]": ["b.b"]},
    ]
    rows = [{"reds": row} for row in reds]

    # After the first, the second kills one fault and 0.4 of another in four seconds, the third only that part.
    assert list(in_order(rows, seconds)) == [("a.a", "bool"), ("b.b", "int8"), ("a.a", "int8")]
    killed = [row["reds"] for row in kills_with([("a.a", "bool")], rows)]
    assert killed == [["operators.x[int8]", "operators.x[bool]"], ["operators.x[bool]"], [], ["foreach.add[int8]"]]


def test_the_file_names_ids_by_their_axes() -> None:
    written = text(["b.x[int8]", "a.y", "b.x[float32]"], [("one.one", "int8"), ("a.a", "int8")])

    assert written == '{"cases":{"a.y":[""],"b.x":["float32","int8"]},"families":{"int8":["a.a","one.one"]}}'


def test_every_family_is_one_of_the_suite() -> None:
    known = {family.name for mode in (Mode.INFERENCE, Mode.TRAINING) for family in families(mode)}
    chosen = set().union(*(standard_families(id) for id in standard_ids()))

    assert sorted(chosen - known) == []
    assert set() < chosen < known


def test_cells_have_the_families_of_their_own_axes() -> None:
    few, many = (standard_families(f"operators.add[{axes}]") for axes in ("float64-inference", "float32-inference"))

    assert many
    assert few != many


def test_operators_have_fewer_inputs_in_a_run_of_the_profile(tmp_path: Path) -> None:
    """A call is selected that a family makes which the profile leaves out: it is not among the calls of the case."""
    outcomes = {}
    for options in ((), ("--profile=standard",), ("--profile=standard", f"--challenge={NONCE}")):
        ended = run("--accelerator=cpu", *options, "--case", f"{CELL}{CALL}", "-n0", cwd=tmp_path)
        (case,) = ended.report.cases
        outcomes[options] = case.outcome, case.reason

    usual, standard, challenged = outcomes.values()
    assert usual == (Outcome.PASS, Reason.NATIVE)
    assert standard == (Outcome.SKIP, Reason.ENVIRONMENT)
    # Another machine recomputes the answers, without a profile.
    assert challenged == usual


def test_the_last_line_of_a_run_names_the_command_for_every_case(tmp_path: Path) -> None:
    ended = run("--accelerator=cpu", "--profile=standard", "--area=monitor", "-n1", cwd=tmp_path)

    assert ended.status == 0, ended.output
    lines = ended.output.strip().splitlines()
    assert lines[-2] == "every case with all its inputs, as badges and the gate ask for: pytest --accelerator=cpu"
    assert {case.id for case in ended.report.cases} < standard_ids() | {case.id for case in known_cases(["monitor"])}
