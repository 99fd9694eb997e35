"""Programs that are drawn for compilers."""

from __future__ import annotations

import pytest
import torch

from conformance.suites.compile.drawn import _ALL, Program, programs
from conformance.suites.operators.plan.catalogue import operators

DTYPES = (torch.float32, torch.bfloat16, torch.int64)


def drawn(dtype: torch.dtype, count: int = 40) -> list[Program]:
    return programs(dtype, range(count), lambda *_: True)


def test_steps_name_operators_that_a_device_can_claim() -> None:
    known = {operator.full_name for operator in operators()}

    assert sorted({step.operator for step in _ALL} - known) == []


def test_draws_have_every_operator() -> None:
    found = {name for dtype in DTYPES for program in drawn(dtype, 200) for name, _ in program.needs}

    assert sorted({step.operator for step in _ALL} - found) == []


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


def test_a_program_that_needs_an_operator_that_is_not_claimed_is_left_out() -> None:
    without = programs(torch.float32, range(40), lambda name, _: name != "amax")

    assert 0 < len(without) < len(drawn(torch.float32))
    assert not any("amax" in program.text for program in without)
