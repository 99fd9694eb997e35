"""The deep tier sees defects that the usual inputs of an operator do not show, and accuses nobody without one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from conformance.plan.bundled import bundled_cases
from conformance.plan.case import Case
from conformance.suites.operators import cell
from conformance.suites.operators.calls import database, execution, sampling
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.calls.execution import call
from conformance.suites.operators.calls.work import work
from conformance.suites.operators.plan import catalogue, deep

from .test_operators_detect import CPU, run
from .test_operators_detect import planned as usual

Execute = Callable[..., Any]


def planned(name: str) -> Case:
    """Return the deep case of an operator in float32."""
    operator = next(operator for operator in catalogue.operators() if operator.name == name)
    return next(case for case in deep.cases_of(operator) if case.id.endswith("[float32-inference-deep]"))


def is_overload(function: Any) -> bool:
    return isinstance(function, torch._ops.OpOverload)


def without_value_in_overloads(function: Any, sample: Call, **extra: Any) -> Any:
    """Ignore ``value`` where the overload itself is called."""
    kept = {name: value for name, value in sample.kwargs.items() if name != "value" or not is_overload(function)}
    return call(function, sample.with_arguments((sample.input, sample.args, kept)), **extra)


def in_order_of_memory_in_overloads(function: Any, sample: Call, **extra: Any) -> Any:
    """Read a transposed tensor in the order of its memory where the overload itself is called."""
    if not is_overload(function) or not isinstance(sample.input, torch.Tensor) or sample.input.is_contiguous():
        return call(function, sample, **extra)
    copy = sample.input.clone(memory_format=torch.preserve_format)
    return call(function, sample.with_arguments((copy.t().reshape(copy.shape), sample.args, sample.kwargs)), **extra)


@pytest.mark.parametrize(
    ("name", "broken"),
    [("addcmul", without_value_in_overloads), ("mm", in_order_of_memory_in_overloads)],
)
def test_a_defect_of_direct_calls_shows_in_the_deep_tier_alone(
    monkeypatch: pytest.MonkeyPatch, name: str, broken: Execute
) -> None:
    case = planned(name)
    assert cell_of(case) is None

    monkeypatch.setattr(execution, "execute", broken)

    run(f"operators.{name}[float32-inference]")
    assert "differ" in str(cell_of(case))


def test_a_deep_case_has_more_samples() -> None:
    info = database.find("nn.functional.pad.constant")

    usual, more = (
        sampling.pick(info, torch.float32, requires_grad=False, extent=work(deep).inference) for deep in (False, True)
    )

    assert len(more) > len(usual)
    assert work(deep=True).large.iterative > work().large.iterative


def cell_of(case: Case) -> AssertionError | None:
    """Run a deep case on PyTorch's CPU; return its failure."""
    from conformance.judging.checker import Checker

    torch.manual_seed(0)
    check = Checker()
    try:
        cell.run(case, CPU, check)
    except AssertionError as failure:
        return failure
    assert check.count > 100
    return None


def test_the_deep_tier_is_planned_only_where_it_is_asked_for() -> None:
    ids = {bundled.case.id for bundled in bundled_cases(["operators"])}
    more = {bundled.case.id for bundled in bundled_cases(["operators"], deep=True)} - ids

    assert more == {case.id for case in deep.generate()}
    assert {id.removesuffix("-deep]") + "]" for id in more} <= set(usual())
