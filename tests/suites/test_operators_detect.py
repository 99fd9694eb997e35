"""The operator cells accuse nobody who computes like PyTorch's own CPU. tests/defects holds what they catch."""

from __future__ import annotations

import functools
import random
from typing import Any

import numpy as np
import pytest
import torch

from conformance.judging.checker import Checker
from conformance.plan.case import Case, seed_of
from conformance.suites.operators import cell
from conformance.suites.operators.calls import execution
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.plan import catalogue
from tests.defects.catalogue.stand_ins import operators
from tests.layers import longer

CPU = torch.device("cpu")


@functools.cache
def planned() -> dict[str, Case]:
    return {case.id: case for case in catalogue.generate()}


def run(case_id: str, base: int = 0, dtypes: frozenset[str] | None = None) -> Checker:
    """One case's body under the seeds the plugin would give it, for a device that declares ``dtypes``."""
    seed = seed_of(case_id, base)
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    check = Checker()
    check.dtypes = dtypes
    cell.run(planned()[case_id], CPU, check)
    return check


@pytest.mark.parametrize("base", longer([1, 2, 3]))
def test_another_seed_accuses_nobody(base):
    for case_id in sorted({mutant.fault.caught_by for mutant in operators.MUTANTS}):
        run(case_id, base)


@pytest.mark.parametrize("name", ["sparse.sampled_addmm", "sparse.mm.reduce", "to_sparse"])
def test_a_gradient_keeps_its_layout(name: str) -> None:
    """The gradient of a sparse input is sparse, and no strided tensor is expected in its place."""
    assert run(f"operators.{name}[float32-training]").count > 10


@pytest.mark.parametrize(
    ("name", "factor"),
    [
        ("linalg.cross", 1 + 2.6e-6),
        ("linalg.multi_dot", 1 + 1e-5),
        ("linalg.vander", 1 + 2.6e-6),
        ("linalg.vecdot", 1 + 2.6e-6),
        ("ormqr", 1 + 1e-5),
    ],
)
def test_a_product_of_linear_algebra_has_the_budget_of_a_product(
    name: str, factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """These neither factorise nor solve."""

    def inexact(function: Any, sample: Call, **extra: Any) -> Any:
        result = execution.call(function, sample, **extra)
        return result * factor if result.numel() and result.is_floating_point() else result

    monkeypatch.setattr(execution, "execute", inexact)

    with pytest.raises(AssertionError, match="elements differ"):
        run(f"operators.{name}[float32-inference]")


@pytest.mark.parametrize(
    ("cell_", "factor"),
    [
        ("exp[bfloat16-inference]", 1.032),
        ("sin[float16-inference]", 1.004),
        ("special.i1[bfloat16-inference]", 1.032),
        ("lgamma[float16-inference]", 1.004),
        ("pow[bfloat16-inference]", 1.032),
    ],
)
def test_a_function_in_16_bits_rounds_once(cell_: str, factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels compute such functions in float32. These errors are more than ``torch.testing`` permits."""

    def inexact(function: Any, sample: Call, **extra: Any) -> Any:
        result = execution.call(function, sample, **extra)
        return result.mul_(factor)

    monkeypatch.setattr(execution, "execute", inexact)

    with pytest.raises(AssertionError, match=r"elements differ.*outside torch.testing's"):
        run(f"operators.{cell_}")


def test_a_better_device_is_right(monkeypatch):
    """A device that computes in float64 and rounds once differs from the host, and is closer to the truth."""

    def wide(function, sample, **extra):
        result = execution.call(function, sample, **extra)
        if extra or not isinstance(result, torch.Tensor) or result.data_ptr() == sample.input.data_ptr():
            return result
        exact = execution.call(function, sample.wide(lambda tensor: tensor))
        return exact.to(result.dtype).as_strided(result.shape, result.stride())

    monkeypatch.setattr(execution, "execute", wide)
    for name in ("exp", "tanh", "softmax", "mm", "sum", "var", "logsumexp", "nn.functional.silu", "linalg.inv"):
        for dtype in ("float32", "bfloat16"):
            if planned()[f"operators.{name}[{dtype}-inference]"].in_reference:
                run(f"operators.{name}[{dtype}-inference]")


def test_a_refusal_is_no_assertion(monkeypatch):
    """A device that does not have the operator says so, and nobody calls its result wrong."""

    def refuse(function, sample, **extra):
        raise NotImplementedError("no kernel")

    monkeypatch.setattr(execution, "execute", refuse)

    for case_id in (
        "operators.mm[float32-inference]",
        "operators.mm[float32-training]",
        "operators.mm[bool-inference]",
    ):
        with pytest.raises(NotImplementedError, match="no kernel"):
            run(case_id)


def test_the_worst_numbers_are_reported(monkeypatch):
    monkeypatch.setattr(execution, "execute", lambda f, s, **e: execution.call(f, s, **e))

    metrics = run("operators.mm[float32-inference]").metrics

    assert metrics["comparisons"] > 0
    assert 0 < metrics["host_budget_ratio"] < 1
    assert metrics["max_budget_ratio"] == 0
