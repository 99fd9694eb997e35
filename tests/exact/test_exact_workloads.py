"""Exact workloads have the same bits in any order and with any number of threads, and one wrong bit has a place."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from conformance.judging.checker import Checker
from conformance.suites.workloads.exact.decoder import Decoder
from conformance.suites.workloads.exact.families import Family, absolute, families, ints
from conformance.suites.workloads.exact.proof import NotExact, Proof, unit_of
from conformance.suites.workloads.exact.ranks import decoder
from conformance.suites.workloads.exact.reference import Comparison, reference
from conformance.suites.workloads.exact.training import check_way, plainly, train
from tests.exact.test_other_order import OtherOrder

HOST = torch.device("cpu")


def every_family() -> list[Family]:
    return [*families().values(), decoder(2), decoder(4)]


def differences(family: Family, mode: Any) -> list[str]:
    """Return the differences of a training inside a mode."""
    compared, model = Comparison(family), family.initial()
    with mode:
        train(compared, family, model, family.optimizer(model), plainly(model), range(family.steps))
    return compared.differences


@pytest.fixture
def prepared() -> None:
    """Make the references before a mode changes what operators do."""
    for family in every_family():
        reference(family, family.steps)


def test_the_opposite_order_changes_no_bit(prepared: None) -> None:
    mode = OtherOrder()

    assert {family.name: found for family in every_family() if (found := differences(family, mode))} == {}
    assert mode.turned > 100


@pytest.mark.parametrize("threads", [1, 3])
def test_the_number_of_threads_changes_no_bit(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for _ in range(2):
            for family in every_family():
                check_way(Checker(), "eager", family, None, HOST, "float32")
    finally:
        torch.set_num_threads(before)


def test_sums_that_are_off_by_one_bit_are_red_in_every_family(prepared: None) -> None:
    mode = OtherOrder(1.0 + 2.0**-23)

    assert [family.name for family in every_family() if not differences(family, mode)] == []


def test_a_lost_gradient_is_named_with_its_place() -> None:
    family = families()["bent"]
    compared, model = Comparison(family, rank=3), family.initial()

    def backward(family: Family, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = plainly(model)(family, inputs, targets)
        model.second.weight.grad[4, 7] = 0.0
        return loss

    train(compared, family, model, family.optimizer(model), backward, range(family.steps))
    with pytest.raises(
        AssertionError, match=r"bent, rank 3, step 1: the gradient of second.weight\[4, 7\] is 0.0, exact"
    ):
        compared.tell(Checker())


class Stuck:
    """Accelerator whose graphs run when they are captured, and never again."""

    def create_graph(self) -> object:
        return object()

    def synchronize(self) -> None:
        pass

    def Stream(self) -> object:
        return object()

    @contextlib.contextmanager
    def stream(self, stream: object) -> Iterator[None]:
        yield

    def capture_to_graph(self, graph: object) -> Any:
        return contextlib.nullcontext()

    def replay_graph(self, graph: object) -> None:
        pass


def test_a_graph_that_replays_nothing_is_red() -> None:
    with pytest.raises(AssertionError, match=r"bent, step 2: the gradient of first.weight\["):
        check_way(Checker(), "captured", families()["bent"], Stuck(), HOST, "float32")


def test_there_are_enough_families_and_gradients_need_more_than_bfloat16() -> None:
    assert len(families()) >= 12
    wide = 0
    for family in every_family():
        known = reference(family, family.steps)
        assert 4.0 < known.bits <= 24.0, (family.name, known.bits, known.where)
        gradients = [each for step in known.steps for each in step.gradients.values()]
        # A softmax that is exactly 0 or 1 passes no gradient to its scores.
        still = [name for name, each in known.steps[0].gradients.items() if not each.any()]
        assert still == (["query.weight", "key.weight"] if family.name == "attention" else []), family.name
        wide += any(not torch.equal(each.bfloat16().double(), each) for each in gradients)
    assert wide >= 10


class Rounded(nn.Module):
    """Model with a function that rounds."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layer(x))


def test_a_function_that_rounds_has_no_proof() -> None:
    family = Family("rounded", Rounded, families()["plain"].data, absolute)

    with pytest.raises(NotExact, match="tanh"):
        reference(family, 1)


@pytest.mark.parametrize(
    ("function", "bits"),
    [
        (lambda a, b: a @ b, 6 + 3),  # 64 products of 1 and 8
        (lambda a, b: a.sum(), 7),
        (lambda a, b: a + b[:2] * 0.125, 4),  # 1 + 1 in eighths
        (lambda a, b: (a - b[:2] / 8).sum(1), 10),  # 64 differences, which add up, in eighths
    ],
)
def test_the_bound_is_the_sum_of_absolute_values(function: Any, bits: float) -> None:
    a, b = torch.ones(2, 64, dtype=torch.float64), torch.full((64, 64), 8.0, dtype=torch.float64)
    b[0, 0], a[0, 0] = 1.0, -1.0
    proof = Proof()

    with proof:
        function(a, b)

    assert abs(proof.bits - bits) < 0.2, proof.bits


def test_a_division_that_rounds_has_no_proof() -> None:
    with pytest.raises(NotExact, match="no power of two"), Proof():
        torch.ones(3, dtype=torch.float64) / 3.0
    with pytest.raises(NotExact, match="mean of 3"), Proof():
        torch.ones(3, dtype=torch.float64).mean()


def test_a_soft_softmax_has_no_proof() -> None:
    with pytest.raises(NotExact, match="softmax"), Proof():
        torch.arange(3.0, dtype=torch.float64).softmax(-1)


def test_the_unit_is_the_lowest_bit() -> None:
    assert unit_of(torch.tensor([0.0, 3.0, 0.75])) == 0.25
    assert unit_of(ints(-3, 3, (50,), 1) * 8.0) == 8.0
    assert isinstance(decoder(2).build(), Decoder)
