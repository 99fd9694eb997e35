from __future__ import annotations

from tests.workload_faults.__main__ import is_enough, report

PLANTED = {f"fault {number}": True for number in range(60)}


def test_all_killed_and_all_named_is_enough() -> None:
    assert is_enough(PLANTED, {"fault 1": True})


def test_a_survivor_is_not_enough_and_is_named() -> None:
    survived = {**PLANTED, "fault 7": False}

    assert not is_enough(survived, {"fault 1": True})
    assert "survives: fault 7" in report(survived, {"fault 1": True})


def test_one_of_two_layers_is_not_enough() -> None:
    layers = {"fault 1": True, "fault 2": False}

    assert not is_enough(PLANTED, layers)
    assert "another layer is named: fault 2" in report(PLANTED, layers)


def test_too_few_faults_are_not_enough() -> None:
    assert not is_enough({"fault 1": True}, {"fault 1": True})
