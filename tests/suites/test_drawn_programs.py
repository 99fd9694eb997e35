"""Programs that are drawn for compilers and for calls."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import torch

from conformance.suites.drawn_programs import Program, _Draft, gradients, is_claimed, programs
from conformance.suites.drawn_steps import BESIDE, BY_CALLS, EXACT, LAYERS, ROUNDED, Step
from conformance.suites.operators.plan.catalogue import operators

DTYPES = (torch.float32, torch.bfloat16, torch.int64)


def drawn(dtype: torch.dtype, count: int = 40, **kind: bool) -> list[Program]:
    return programs(dtype, range(count), lambda *_: True, **kind)


def test_steps_name_operators_that_a_device_can_claim() -> None:
    known = {operator.full_name for operator in operators()}

    assert sorted(({step.operator for step in (*EXACT, *BY_CALLS, *ROUNDED, *LAYERS)} | BESIDE) - known) == []


@pytest.mark.parametrize("dtype", [torch.float64, torch.uint8])
def test_a_device_that_claims_no_operator_in_a_dtype_has_no_program(dtype: torch.dtype) -> None:
    assert programs(dtype, range(4), lambda *_: False) == []


OF_KINDS = {"f": torch.float32, "i": torch.int64, "b": torch.bool}


def can_be_drawn(step: Step, *, by_calls: bool) -> bool:
    dtype = OF_KINDS[step.kinds[0]]
    drafts = (
        _Draft(dtype, random.Random(number), [[step]], [step], by_calls=by_calls, trained=False) for number in range(99)
    )
    return any(draft.program() for draft in drafts)


@pytest.mark.parametrize(("by_calls", "steps"), [(False, (*EXACT, *ROUNDED, *LAYERS)), (True, (*BY_CALLS, *LAYERS))])
def test_every_step_can_be_drawn(by_calls: bool, steps: tuple[Step, ...]) -> None:
    assert [step.text for step in steps if not can_be_drawn(step, by_calls=by_calls)] == []


@pytest.mark.parametrize("dtype", DTYPES)
def test_draws_are_the_same_each_time_and_differ_among_each_other(dtype: torch.dtype) -> None:
    first, again = drawn(dtype), drawn(dtype)

    assert first == again
    assert len({program.text for program in first}) == len(first)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_beginning_has_the_value_of_its_step_in_the_program(dtype: torch.dtype) -> None:
    for program in drawn(dtype):
        inputs, function = program.made()
        results = dict(zip(program.results, function(*inputs), strict=True))
        for beginning in program.beginnings():
            assert len(beginning.steps) <= len(program.steps)
            own, part = beginning.made()
            [value] = part(*own)
            if (whole := results.get(beginning.results[0])) is not None:
                assert torch.equal(value.double().nan_to_num(7), whole.double().nan_to_num(7)), program.text


@pytest.mark.parametrize("by_calls", [False, True])
def test_programs_are_drawn_from_claimed_operators_alone(by_calls: bool) -> None:
    without = programs(torch.float32, range(120), lambda name, _: name != "amax", by_calls=by_calls)

    assert any(".amax(" in program.text for program in drawn(torch.float32, 120, by_calls=by_calls))
    assert len(without) > 90
    assert not any(".amax(" in program.text for program in without)


def test_programs_with_gradients_have_some_that_are_not_zero() -> None:
    found = drawn(torch.float32, 60, by_calls=True, trained=True)

    assert len(found) > 20
    for program in found:
        wide = gradients(*program.made(wide=True))
        assert any(each.any() for each in wide), program.text
        if not program.rounded:
            pairs = zip(gradients(*program.made()), wide, strict=True)
            assert all(torch.equal(each.double(), due) for each, due in pairs), program.text


def test_a_program_needs_each_operator_that_it_calls() -> None:
    """A comparison by a sign, and what a layer calls, have no name in a program's text."""
    all_of = drawn(torch.float32, by_calls=True)
    everything = SimpleNamespace(supports=lambda cell: True)
    without = SimpleNamespace(supports=lambda cell: cell.subject not in ("operators.eq", "operators.mul"))

    assert all(is_claimed(everything, program) for program in all_of)
    left = [program for program in all_of if is_claimed(without, program)]
    assert 0 < len(left) < len(all_of)
    assert not any(" == " in step for program in left for step in program.steps)
