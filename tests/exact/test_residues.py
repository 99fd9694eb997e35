"""Trainings over residues stay exact at any depth, and one wrong bit in any operator is red with its place."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.judging.checker import Checker
from conformance.suites.workloads.exact import residues
from conformance.suites.workloads.exact.proof import Proof
from tests.exact.test_other_order import OtherOrder

HOST = torch.device("cpu")


@pytest.fixture(autouse=True)
def prepared() -> None:
    """Make the references before a mode changes what operators do."""
    residues.from_integers()
    residues.from_gradients()


def differences(model: Any = None, **options: Any) -> list[str]:
    model = model or residues.Tower()
    compared = residues.comparison(residues.from_integers(), "float64", **options)
    residues.train(compared, model, residues.Optimizer(model))
    return compared.differences


def test_the_two_implementations_agree_bit_for_bit() -> None:
    one, two = residues.from_integers(), residues.from_gradients()

    for left, right in zip(one.steps, two.steps, strict=True):
        assert left.loss == right.loss
        for name in left.weights:
            assert torch.equal(left.weights[name], right.weights[name]), name
            assert torch.equal(left.gradients[name], right.gradients[name]), name


def test_the_opposite_order_changes_no_bit() -> None:
    mode = OtherOrder()

    with mode:
        assert differences() == []
        residues.check_integers(Checker(), HOST, torch.mm)
    assert mode.turned > 100


def test_a_product_of_terms_is_a_matrix_product() -> None:
    residues.check_integers(Checker(), HOST, residues.by_terms)


def test_the_bound_holds_for_every_operator() -> None:
    model, proof = residues.Tower(), Proof()
    tokens, targets = residues.batch(0)

    with proof:
        residues.loss_of(model(tokens), targets).backward()

    assert 32 < proof.bits <= residues.BITS < 53


class OneWrong(TorchDispatchMode):
    """Device whose call of a number, among those that return residues, has one element that is off by 1."""

    def __init__(self, call: int) -> None:
        super().__init__()
        self.call, self.count = call, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func._schema.name == "aten::remainder" and isinstance(result, torch.Tensor):
            self.count += 1
            if self.count == self.call:
                result.flatten()[result.numel() // 2] += 1.0
        return result


def test_one_element_that_is_off_by_one_anywhere_is_red() -> None:
    with OneWrong(0) as counter:
        assert differences() == []
    calls = random.Random("off by one").sample(range(1, counter.count + 1), 20)

    missed = []
    for call in calls:
        with OneWrong(call):
            if not differences():
                missed.append(call)
    assert missed == []


def test_a_lost_gradient_in_a_late_step_is_named_with_its_place() -> None:
    model = residues.Tower()
    seen = []

    def lose(gradient: torch.Tensor) -> torch.Tensor:
        seen.append(gradient)
        if len(seen) == residues.STEPS:
            gradient = gradient.clone()
            gradient[3, 5] = 0.0
        return gradient

    model.blocks[7].down.weight.register_hook(lose)

    first = differences(model, rank=2)[0]
    assert first.startswith(
        f"residues, rank 2, step {residues.STEPS}: the gradient of blocks.7.down.weight[3, 5] is 0.0"
    )
