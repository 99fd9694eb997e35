"""A device whose functions are correctly rounded fails nothing; one that is beyond the budget fails.

``CONFORMANCE_EXACT=1`` takes all operators and samples of the suite, with five seeds; it takes some minutes.
"""

from __future__ import annotations

import functools
import math
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from conformance.judging.checker import Checker
from conformance.numerics import compare
from conformance.numerics.budgets import OpClass
from conformance.numerics.compare import Comparison, Exact
from conformance.plan.case import Case, seed_of
from conformance.suites.operators import cell
from conformance.suites.operators.calls import database, execution, sampling
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.calls.classes import op_class
from conformance.suites.operators.calls.work import work
from conformance.suites.operators.inputs import long_axes, tiers
from conformance.suites.operators.judge import cells
from conformance.suites.operators.judge.oracle import FunctionElements, of_forward
from conformance.suites.operators.plan import catalogue
from tests.exact.device import ExactDevice, is_evaluated
from tests.layers import longer

CPU = torch.device("cpu")
ALL_SAMPLES = bool(os.environ.get("CONFORMANCE_EXACT"))
#: Seeds with the step between operators: few with each change of the code, every second in the long tests, and all in
#: the instrument.
FIRST = (0, 48)
SEEDS = [FIRST, *([(seed, 1) for seed in range(5)] if ALL_SAMPLES else [(0, 2), (1, 2)])]
REPEATING = SEEDS[2:]
#: Of all operators.
FEWEST_OPERATORS = 100


@functools.cache
def planned() -> dict[str, Case]:
    return {case.id: case for case in catalogue.generate()}


@functools.cache
def evaluated() -> dict[str, Any]:
    """The operators that mpmath can evaluate, with their variants, by full name."""
    return {name: info for name, info in database.database().items() if is_evaluated(info)}


def evaluated_cells(mode: str, step: int) -> list[tuple[str, str]]:
    """Return (operator, case id) of the cells of operators in float32 and float64 that PyTorch's CPU has."""
    found = []
    for name in [*evaluated()][::step]:
        for dtype in ("float32", "float64"):
            case = planned().get(f"operators.{name}[{dtype}-{mode}]")
            if case is not None and case.in_reference:
                found.append((name, case.id))
    return found


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    # Large samples repeat the values of small ones; mpmath would need minutes for each.
    usual = work()
    less = replace(usual, large=replace(usual.large, elements=300, iterative=300))
    if not ALL_SAMPLES:
        less = replace(
            less,
            inference=replace(usual.inference, samples=2, elements=60),
            training=replace(usual.training, samples=1, elements=60),
            edges=replace(usual.edges, sizes=(1, 17)),
        )
    for module in (cell, cells):
        monkeypatch.setattr(module, "work", lambda deep=False: less)
    # The lengths of long axes are no amount of work.
    for name in ("_MANY", "_ROWS"):
        monkeypatch.setattr(long_axes, name, 300)


def run(case_id: str, device: ExactDevice, base: int) -> Checker:
    seed = seed_of(case_id, base)
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    check = Checker()
    with device.installed():
        cell.run(planned()[case_id], CPU, check)
    return check


def failures(mode: str, base: int, step: int) -> tuple[dict[str, str], set[str]]:
    """Run all cells of a mode; return the failures by case id, and the operators of which mpmath computed elements."""
    failed, computed = {}, set()
    for name, case_id in evaluated_cells(mode, step):
        device = ExactDevice(evaluated()[name].name)
        try:
            run(case_id, device, base)
        except Exception as error:  # every kind of failure is listed
            failed[case_id] = f"{type(error).__name__}: {error}"
        if device.replaced:
            computed.add(name)
    return failed, computed


@pytest.mark.parametrize(("base", "step"), longer(SEEDS, FIRST, repeating=REPEATING))
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_exact_values_fail_nothing(mode: str, base: int, step: int, small: None) -> None:
    failed, computed = failures(mode, base, step)

    print(f"{len(computed)} operators in {mode} with exact values, seed {base}")
    assert not failed
    assert len(computed) >= FEWEST_OPERATORS // step


def samples_of(info: Any, dtype: torch.dtype, base: int) -> Iterator[Call]:
    torch.manual_seed(base)
    yield from tiers.edge_sizes(info, dtype, work().edges.sizes) or sampling.pick(
        info, dtype, requires_grad=False, extent=work().inference
    )


@dataclass(frozen=True)
class Beyond:
    """One element of a result, and values 3 ulp inside and 3 ulp beyond the error that is allowed there."""

    host: torch.Tensor
    oracle: Exact
    op_class: OpClass
    position: int
    right: float
    inside: float
    beyond: float

    def found(self, value: float) -> Comparison:
        actual = self.host.clone(memory_format=torch.contiguous_format)
        actual.view(-1)[self.position] = value
        return compare.compare(actual, self.host, lambda: self.oracle, self.op_class)


def edge_of(info: Any, sample: Call, dtype: torch.dtype) -> Beyond | None:
    """Find the edge of what is allowed for the last element with an ordinary exact value."""
    host = execution.call(info.op, sample.on(CPU))
    oracle = of_forward(info, sample).leaf(0)
    if host.dtype is not dtype or oracle is None or oracle.elements is None or host.shape != oracle.value.shape:
        return None
    for position in reversed(range(host.numel())):
        value = oracle.elements.values([position])[0]
        if math.isfinite(value) and torch.finfo(dtype).tiny * 1e6 < abs(value) < torch.finfo(dtype).max / 1e6:
            break
    else:
        return None
    allowed = max(
        allowed_at(host, oracle, op_class(info), position, value, response)
        for response in (None, oracle.elements.responses([position])[0])
    )
    away = 1 if value >= float(host.reshape(-1)[position]) else -1
    # Of the larger of both numbers, as the edge may lie beyond a power of two.
    ulp = torch.finfo(dtype).eps * 2.0 ** math.floor(math.log2(abs(value) + allowed))
    return Beyond(
        host, oracle, op_class(info), position, value,
        value + away * max(allowed - 3 * ulp, 0), value + away * (allowed + 3 * ulp),
    )  # fmt: skip


def allowed_at(
    host: torch.Tensor, oracle: Exact, kind: OpClass, position: int, value: float, response: float | None
) -> float:
    """Return the allowed error of an element whose exact value and response are these."""
    values, responses = oracle.value.clone(memory_format=torch.contiguous_format), oracle.response()
    responses = values.abs() if responses is None else responses.clone(memory_format=torch.contiguous_format)
    values.view(-1)[position] = value
    if response is not None and not math.isnan(response):
        responses.view(-1)[position] = response
    better = Exact(values, lambda: responses)
    return float(compare.judged_elements(host, host, better, kind, 1.0).allowed.reshape(-1)[position])


@pytest.mark.parametrize(("base", "step"), longer(SEEDS, FIRST, repeating=REPEATING))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_three_ulp_beyond_the_budget_fail(dtype: torch.dtype, base: int, step: int, small: None) -> None:
    accepted, refused, tried = [], [], set()
    for name, info in [*evaluated().items()][::step]:
        for sample in samples_of(info, dtype, base) if dtype in info.dtypes else ():
            with cell.quiet():
                edge = edge_of(info, sample, dtype)
            if edge is None:
                continue
            tried.add(name)
            if edge.found(edge.beyond).right:
                accepted.append((name, edge))
            if not edge.found(edge.inside).right:
                refused.append((name, edge))

    assert not accepted
    assert not refused
    assert len(tried) >= FEWEST_OPERATORS // step


#: Operators of which PyTorch's CPU is wrong in the fifth to ninth digit, even in float64, and that relative error.
WRONG_ON_THE_HOST = {
    "polygamma": 1e-6,
    "special.airy_ai": 1e-4,
    "special.bessel_j0": 1e-4,
    "special.bessel_j1": 1e-4,
    "special.bessel_y0": 1e-4,
    "special.bessel_y1": 1e-4,
    "special.polygamma": 1e-6,
}


def test_the_functions_are_those_of_pytorch() -> None:
    """The formulas are our own, so they are compared with PyTorch's, apart from where PyTorch is known to be wrong."""
    wrong = []
    for name, info in evaluated().items():
        if torch.float64 not in info.dtypes:
            continue
        tolerance = WRONG_ON_THE_HOST.get(info.name, 1e-9)
        for sample in samples_of(info, torch.float64, 0):
            host = execution.call(info.op, sample.on(CPU))
            function = FunctionElements.of(info, sample)
            if function is None or host.shape != function.arguments[0].shape:
                continue
            values = torch.tensor(function.values([*range(host.numel())][:25]), dtype=torch.float64)
            expected = host.reshape(-1)[:25]
            known = ~values.isnan() & expected.isfinite()
            if not torch.allclose(values[known], expected[known], rtol=tolerance, atol=1e-12):
                wrong.append((name, str(sample)))

    assert not wrong
