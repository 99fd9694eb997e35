"""Choices among equal elements are the device's, and a choice that is no equal element is wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from conformance.suites.operators.calls import database, execution
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.calls.execution import call
from conformance.suites.operators.checks import training
from conformance.suites.operators.judge import choices

from .test_operators_detect import run

ROW = torch.tensor([[3.0, 1.0, 3.0, 1.0, 2.0]])


def info_of(name: str) -> Any:
    return database.find(name)


def settled(name: str, sample: Call, actual: list[torch.Tensor]) -> bool:
    found = call(info_of(name).op, sample)
    expected = list(found) if isinstance(found, tuple) else [found]
    return all(map(torch.equal, choices.settled(info_of(name), sample, actual, expected), actual))


def of(*args: Any, x: torch.Tensor = ROW, **kwargs: Any) -> Call:
    return Call(0, x, args, kwargs)


SORTED = torch.tensor([[1.0, 1.0, 2.0, 3.0, 3.0]])
EQUALLY_GOOD = [
    ("sort", of(), [SORTED, torch.tensor([[3, 1, 4, 2, 0]])]),
    ("argsort", of(), [torch.tensor([[3, 1, 4, 2, 0]])]),
    ("argsort", of(dim=1, descending=True), [torch.tensor([[2, 0, 4, 3, 1]])]),
    ("topk", of(2), [torch.tensor([[3.0, 3.0]]), torch.tensor([[2, 0]])]),
    ("topk", of(3, sorted=False), [torch.tensor([[2.0, 3.0, 3.0]]), torch.tensor([[4, 2, 0]])]),
    ("kthvalue", of(2), [torch.tensor([1.0]), torch.tensor([3])]),
    ("median", of(1, x=ROW[:, :3]), [torch.tensor([3.0]), torch.tensor([2])]),
    ("mode", of(), [torch.tensor([3.0]), torch.tensor([2])]),
    ("unique", of(sorted=False, return_inverse=True, return_counts=True),
     [torch.tensor([3.0, 2.0, 1.0]), torch.tensor([[0, 2, 0, 2, 1]]), torch.tensor([2, 1, 2])]),
]  # fmt: skip
WRONG = [
    ("sort", of(), [SORTED, torch.tensor([[1, 1, 4, 2, 0]])]),  # one element twice
    ("sort", of(), [SORTED, torch.tensor([[1, 4, 3, 2, 0]])]),  # another element
    ("sort", of(stable=True), [SORTED, torch.tensor([[3, 1, 4, 2, 0]])]),  # the order is promised
    ("argsort", of(), [torch.tensor([[3, 1, 4, 2, 5]])]),  # no such element
    ("topk", of(2), [torch.tensor([[3.0, 2.0]]), torch.tensor([[2, 4]])]),
    ("topk", of(3), [torch.tensor([[2.0, 3.0, 3.0]]), torch.tensor([[4, 2, 0]])]),  # sorted was asked for
    ("kthvalue", of(2), [torch.tensor([1.0]), torch.tensor([0])]),
    ("mode", of(), [torch.tensor([2.0]), torch.tensor([4])]),  # occurs once
    ("unique", of(sorted=False, return_inverse=True),
     [torch.tensor([3.0, 2.0, 1.0]), torch.tensor([[2, 0, 2, 0, 1]])]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "sample", "actual"), EQUALLY_GOOD)
def test_an_equal_element_is_right(name: str, sample: Call, actual: list[torch.Tensor]) -> None:
    assert settled(name, sample, actual)


@pytest.mark.parametrize(("name", "sample", "actual"), WRONG)
def test_another_element_is_wrong(name: str, sample: Call, actual: list[torch.Tensor]) -> None:
    assert not settled(name, sample, actual)


def test_the_exponent_of_infinity_is_open_and_that_of_one_is_not() -> None:
    x = torch.tensor([float("inf"), -float("inf"), 1.0])
    mantissa, exponent = torch.frexp(x)
    sample = of(x=x)

    assert settled("frexp", sample, [mantissa, torch.tensor([5, 7, 1], dtype=torch.int32)])
    assert not settled("frexp", sample, [mantissa, exponent + 1])


def last_of_equals(function: Any, sample: Call, **extra: Any) -> Any:
    """Sort backwards among equals, in the strides that the meta function gives every device."""
    if extra or sample.kwargs.get("stable") or sample.input.dim() == 0 or not hasattr(function, "__name__"):
        return call(function, sample, **extra)
    dim = sample.kwargs.get("dim", sample.args[0] if sample.args else -1)
    descending = sample.kwargs.get("descending", sample.args[1] if len(sample.args) > 1 else False)
    order = torch.sort(sample.input.detach().flip(dim), dim=dim, descending=descending, stable=True).indices
    index = sample.input.shape[dim] - 1 - order
    values, indices = map(torch.empty_like, call(function, sample))
    return torch.return_types.sort((values.copy_(sample.input.gather(dim, index)), indices.copy_(index)))


@pytest.mark.parametrize("dtype", ["bool", "int8", "bfloat16"])
def test_a_sort_that_is_not_stable_passes(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "execute", last_of_equals)

    assert run(f"operators.sort[{dtype}-inference]").count > 10


def test_its_gradient_goes_where_the_element_came_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "execute", last_of_equals)
    assert run("operators.sort[bfloat16-training]").count > 10

    right = training.choices.gradient
    monkeypatch.setattr(training.choices, "gradient", lambda *given: right(*given).roll(1))
    with pytest.raises(AssertionError, match="gradient of input 0"):
        run("operators.sort[bfloat16-training]")
