"""What a run amounts to."""

from __future__ import annotations

import pytest

from conformance.reports.totals import Counts, ExitStatus, count, exit_status, idle_areas
from conformance.reports.verdict import Outcome, Reason

GREEN, FAILED, INTERNAL, NOTHING, UNACCOUNTED = ExitStatus


@pytest.mark.parametrize(
    ("counts", "disordered", "idle", "expected"),
    [
        (Counts(passed=1), False, False, GREEN),
        (Counts(passed=1, skipped=5), False, False, GREEN),
        (Counts(passed=1, failed=1), False, False, FAILED),
        (Counts(failed=1), False, False, FAILED),
        (Counts(), False, False, NOTHING),
        (Counts(skipped=9), False, True, NOTHING),
        (Counts(passed=1), False, True, FAILED),
        (Counts(passed=1, lost=1), False, False, UNACCOUNTED),
        (Counts(passed=1, failed=1, lost=1), False, False, UNACCOUNTED),
        (Counts(passed=1), True, False, UNACCOUNTED),
    ],
)
def test_exit_status(counts: Counts, disordered: bool, idle: bool, expected: ExitStatus) -> None:
    assert exit_status(counts, disordered=disordered, idle=idle) is expected


def test_an_error_of_the_suite_outranks_everything() -> None:
    counts = Counts(passed=1, failed=1, lost=1)

    assert exit_status(counts, disordered=True, idle=False, internal=True) is INTERNAL


def test_the_statuses_are_the_documented_numbers() -> None:
    assert [GREEN, FAILED, INTERNAL, NOTHING, UNACCOUNTED] == [0, 1, 3, 5, 6]


def test_an_area_with_claims_where_nothing_ran_is_idle() -> None:
    rows = [
        ("operators", Outcome.PASS, Reason.NATIVE),
        ("operators", Outcome.SKIP, Reason.ENVIRONMENT),
        ("comm", Outcome.SKIP, Reason.ENVIRONMENT),
        ("comm", Outcome.SKIP, Reason.UNDECLARED),
        ("ops", Outcome.SKIP, Reason.UNSUPPORTED),
        ("utils", Outcome.SKIP, Reason.WAIVED),
    ]

    assert idle_areas(rows) == ("comm",)


@pytest.mark.parametrize(
    ("outcome", "reason", "claimed"),
    [
        (Outcome.PASS, Reason.NATIVE, True),
        (Outcome.SKIP, Reason.UNSUPPORTED, False),
        (Outcome.SKIP, Reason.UNDECLARED, False),
        (Outcome.FAIL, Reason.UNDECLARED, False),
        (Outcome.SKIP, Reason.UNDER_DECLARED, False),
        (Outcome.SKIP, Reason.ENVIRONMENT, True),
        (Outcome.SKIP, Reason.OVER_DECLARED, True),
        (Outcome.FAIL, Reason.UNSAFE, True),
        (None, None, True),
    ],
)
def test_what_counts_as_claimed(outcome: Outcome | None, reason: Reason | None, claimed: bool) -> None:
    assert bool(count(outcome, reason).claimed) is claimed


def test_only_all_of_them_are_a_hundred_percent() -> None:
    assert Counts(passed=99_999, claimed=100_000).verified == "99999/100000 99.9 %"
    assert Counts(passed=3, claimed=3).verified == "3/3 100 %"
    assert Counts(skipped=3).verified == "–"
