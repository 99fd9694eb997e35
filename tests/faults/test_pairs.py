"""Families T, S and K: populations, ids, draws, conditions, and the cases that a fault of collectives goes through."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.faults import run
from tests.faults.fault import Fault
from tests.faults.pairs import collectives, families, order, state
from tests.faults.pairs.pair import CALLS, PLACES, Pair, population


@pytest.mark.parametrize("family", families.FAMILIES)
def test_a_family_has_at_least_300_faults(family: str) -> None:
    assert families.size(family) >= 300


@pytest.mark.parametrize(("family", "parts"), [("T", order.PARTS), ("S", state.PARTS)])
def test_faults_have_ids_of_their_own_that_stay(family: str, parts: Any) -> None:
    ids = [pair.fault.id for pair in population(family, parts)]

    assert len(set(ids)) == len(ids)
    assert ids == [pair.fault.id for pair in population(family, parts)]


def test_places_and_calls_are_switches_of_the_simulator() -> None:
    from tests.defects.faults import SWITCHES

    used = {switch for table in (PLACES, CALLS) for switches in table.values() for switch in switches}
    used |= {switch for part in (*order.PARTS, *state.PARTS) for switch in part.switches}

    assert used <= set(SWITCHES)


def test_a_pair_names_its_part_its_place_and_its_calls() -> None:
    pair = Pair("T", order.PARTS[0], "device 1", "every second")

    assert str(pair.fault) == "T.wait_stream ignored device 1 [every second]"


def test_faults_of_collectives_have_a_meaning() -> None:
    names = {str(fault) for fault in collectives.population()}

    assert "K.operation ignored all_reduce [float16]" in names
    assert not [name for name in names if "operation ignored broadcast" in name or "root ignored all_reduce" in name]
    assert "K.narrow broadcast [float16]" not in names


@pytest.mark.parametrize(
    ("place", "case"),
    [
        ("float16", "comm.reduce[sum-float16-2]"),
        ("asynchronous", "comm.ways[rooted-asynchronous-float32]"),
        ("a subgroup", "comm.ways[rooted-group-float32]"),
    ],
)
def test_candidates_can_meet_the_condition(place: str, case: str) -> None:
    cases = {
        "comm.reduce[sum-float16-2]": 2,
        "comm.reduce[sum-float32-2]": 2,
        "comm.ways[rooted-asynchronous-float32]": 3,
        "comm.ways[rooted-group-float32]": 3,
        "comm.ways[symmetric-group-float32]": 3,
        "comm.sizes[broadcast-2]": 2,
    }

    assert list(collectives.candidates(Fault("K", "stale", "reduce", place), cases)) == [case]


def test_a_condition_is_read_from_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_world_size", lambda group=None: 2 if group else 4)

    def met(place: str, **given: Any) -> bool:
        call = inspect.signature(dist.broadcast).bind(torch.zeros(5), **{"src": 0, **given})
        call.apply_defaults()
        return collectives.meets(Fault("K", "stale", "broadcast", place), call)

    assert met("float32")
    assert not met("int8")
    assert met("4 ranks")
    assert met("2 ranks", group="some")
    assert met("a subgroup", group="some")
    assert met("root 1", src=1)
    assert not met("root 1")
    assert met("asynchronous", async_op=True)
    assert met("short")
    assert not met("long")


def test_families_of_pairs_are_the_simulators(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--family", "T", "--accelerator", "cpu"]) == 4
    assert "families T, S and K break the simulated accelerator" in capsys.readouterr().err
