"""A check of each row goes through all rows, and names every wrong one."""

from __future__ import annotations

import inspect

import pytest

from tests.rows import every_row


def check(number: int) -> None:
    """Numbers are small."""
    if number == 9:
        raise KeyError("nine")
    assert number < 5, f"{number} is too large"


def test_all_faults_are_in_one_failure() -> None:
    with pytest.raises(AssertionError) as caught:
        every_row([1, 7, 2, 8, 9], name=lambda number: f"row {number}")(check)()

    text = str(caught.value)
    assert text.startswith("3 of 5 rows are wrong\n")
    for fault in ("row 7: AssertionError: 7 is too large", "row 8: AssertionError", "row 9: KeyError: 'nine'"):
        assert fault in text


def test_rows_without_a_fault_pass_and_may_be_made_when_the_test_runs() -> None:
    made = []

    def rows() -> list[int]:
        made.append(1)
        return [1, 2, 3]

    test = every_row(rows)(check)
    assert not made
    test()
    assert made


def test_an_empty_list_is_a_fault() -> None:
    with pytest.raises(AssertionError, match="the list is empty"):
        every_row([])(check)()


def test_pytest_sees_a_test_without_arguments() -> None:
    test = every_row([1])(check)

    assert not inspect.signature(test).parameters
    assert (test.__name__, test.__doc__, test.__module__) == ("check", "Numbers are small.", __name__)
