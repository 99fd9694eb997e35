"""Drawn devices whose bits depend on a surrounding are named; what names them wrongly does not count."""

from __future__ import annotations

import pytest

from tests.layers import longer
from tests.suites.drawn_surroundings import KINDS, Habit, draw, expected, is_named, main


@pytest.mark.parametrize("count", longer([len(KINDS), 30], len(KINDS)))
def test_every_habit_is_named(count: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "habits", "--count", str(count)]) == 0
    assert f"{count} of {count} named" in capsys.readouterr().out


def test_only_the_right_name_counts() -> None:
    habit = Habit(0, "tanh", "stride", 5)

    assert expected(habit) == {"stride": {"tanh": 7}}
    assert is_named(habit, {"stride": {"tanh": 7}, "run": {}})
    assert not is_named(habit, {"stride": {"tanh": 8}, "run": {}})
    assert not is_named(habit, {"stride": {"exp": 7}, "run": {}})
    assert not is_named(habit, {"stride": {"tanh": 7}, "run": {"exp": 2}})
    assert not is_named(habit, {"stride": {}, "run": {}})


def test_a_seed_draws_the_same_habits_of_every_kind() -> None:
    assert draw("a", 9) == draw("a", 9) != draw("b", 9)
    assert {habit.kind for habit in draw("a", len(KINDS))} == set(KINDS)


def test_every_habit_that_is_drawn_has_a_tested_size() -> None:
    assert all(expected(habit) for habit in draw("sizes", 600))
