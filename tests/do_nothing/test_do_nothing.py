"""No case passes on an accelerator that does nothing, except those in may_pass.toml."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.plan.bundled import bundled_cases
from conformance.plan.case import Case
from conformance.plan.selection import matches
from conformance.reports.model import CaseRecord
from conformance.reports.verdict import Outcome, Reason
from tests.layers import longer
from tests.rows import every_row

from .run import may_pass, portion, run_cases, stale, unearned

ALLOWED = {"area.zeros[*": "the right answer is zero"}
PASSED = CaseRecord("area.exp[float32]", "area")


@functools.cache
def planned_cases() -> list[Case]:
    """Return every bundled case. A plan takes a second."""
    return [bundled.case for bundled in bundled_cases()]


@pytest.mark.parametrize(("operators", "others", "workers"), longer([(12, 0, "-n0"), (30, 4, "-n2")]))
def test_a_portion_of_the_suite_sees_that_nothing_is_done(
    operators: int, others: int, workers: str, tmp_path: Path
) -> None:
    planned = planned_cases()
    ids = portion(planned, operators, others)

    cases = run_cases(ids, tmp_path, workers)

    assert {case.id for case in cases} == set(ids)
    assert unearned(cases, may_pass()) == []
    assert stale(cases, may_pass(), [case.id for case in planned]) == []


@pytest.mark.long
def test_no_exact_training_passes(tmp_path: Path) -> None:
    ids = [case.id for case in planned_cases() if matches("workloads.exact.*", case.id)]

    cases = run_cases(ids, tmp_path)

    assert {case.id for case in cases} == set(ids)
    assert [case.id for case in cases if case.outcome is Outcome.PASS] == []


def test_a_pass_without_a_reason_is_found() -> None:
    failed = replace(PASSED, id="area.sin[float32]", outcome=Outcome.FAIL, reason=Reason.WRONG)
    aside = replace(PASSED, id="area.package", about="package")

    assert unearned([PASSED, failed, aside, replace(PASSED, id="area.zeros[int8]")], ALLOWED) == ["area.exp[float32]"]


def test_an_entry_that_passes_no_more_is_found() -> None:
    failed = replace(PASSED, id="area.zeros[int8]", outcome=Outcome.FAIL, reason=Reason.WRONG)

    assert stale([failed], ALLOWED, ["area.zeros[int8]"]) == ["area.zeros[*"]
    both = ["area.zeros[int8]", "area.zeros[bool]"]
    assert stale([failed, replace(PASSED, id=both[1])], ALLOWED, both) == []
    assert stale([failed], ALLOWED, both) == [], "not all that the entry names has run"
    assert stale([PASSED], ALLOWED, both) == [], "nothing that the entry names has run"


@every_row(may_pass())
def test_each_entry_names_a_planned_case_about_the_device(pattern: str) -> None:
    named = [case for case in planned_cases() if matches(pattern, case.id)]

    assert any(case.planned.of_device for case in named)


def test_each_entry_has_a_reason() -> None:
    assert all(reason.endswith(".") for reason in may_pass().values())
