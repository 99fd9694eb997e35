"""The one-bit optimizers, step by step against one process that plays all ranks."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from conformance.base.errors import UsageError
from conformance.kernels.compression import OneBitAdam, OneBitLamb, ZeroOneAdam
from conformance.suites.compression import optimizer_emulation as emulation
from tests.kernels.ranks import run_ranks

SHAPES = ((7, 5), (3,), (40,))
KINDS: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "adam": (OneBitAdam, {"lr": 0.02, "weight_decay": 0.01, "freeze_step": 4}),
    "lamb": (OneBitLamb, {"lr": 0.02, "weight_decay": 0.01, "freeze_step": 4}),
    "zero-one": (
        ZeroOneAdam,
        {"lr": 0.02, "weight_decay": 0.01, "var_freeze_step": 6, "var_update_scaler": 2, "local_step_scaler": 2},
    ),
}
STEPS = 12


def start() -> list[Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def gradients(rank: int, step: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return [torch.randn(shape, generator=generator) * 10.0**-index for index, shape in enumerate(SHAPES)]


def steps(optimizer: Any, parameters: list[nn.Parameter], rank: int, which: range) -> Iterator[list[Tensor]]:
    for step in which:
        for parameter, gradient in zip(parameters, gradients(rank, step), strict=True):
            parameter.grad = gradient
        optimizer.step()
        yield [parameter.detach().clone() for parameter in parameters]


def trajectory(rank: int, size: int, kind: str) -> list[list[Tensor]]:
    """The parameters after every step."""
    make, options = KINDS[kind]
    parameters = [nn.Parameter(tensor) for tensor in start()]
    return list(steps(make(parameters, **options), parameters, rank, range(STEPS)))


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_step_is_the_emulations(kind, size):
    by_rank = run_ranks(trajectory, size, kind)
    player: Callable[..., Any] = {
        "adam": emulation.one_bit_adam,
        "lamb": emulation.one_bit_lamb,
        "zero-one": emulation.zero_one_adam,
    }[kind]
    expected = player(start(), lambda rank, step: gradients(rank, step), size, STEPS, **KINDS[kind][1])

    moved = 0.0
    for step in range(STEPS):
        for rank in range(size):
            for ours, theirs in zip(by_rank[rank][step], expected[step][rank], strict=True):
                torch.testing.assert_close(ours, theirs, rtol=2e-4, atol=2e-5)
        moved = max(float((a - b).abs().max()) for a, b in zip(by_rank[0][step], start(), strict=True))
    assert moved > 0.05
    if kind != "zero-one":  # whose ranks go their own ways between two exchanges
        assert all(torch.equal(a, b) for other in by_rank for a, b in zip(other[-1], by_rank[0][-1], strict=True))


def resumed(rank: int, size: int, kind: str) -> bool:
    """Whether a run saved half way in the compressed stage goes on with the same bits."""
    make, options = KINDS[kind]
    whole = trajectory(rank, size, kind)
    parameters = [nn.Parameter(tensor) for tensor in start()]
    optimizer = make(parameters, **options)
    halfway = list(steps(optimizer, parameters, rank, range(9)))[-1]
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)

    again = [nn.Parameter(tensor) for tensor in halfway]
    continued = make(again, **options)
    continued.load_state_dict(torch.load(file, weights_only=True))
    last = list(steps(continued, again, rank, range(9, STEPS)))[-1]
    return all(torch.equal(a, b) for a, b in zip(last, whole[-1], strict=True))


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_saved_run_goes_on_with_the_same_bits(kind):
    assert run_ranks(resumed, 2, kind) == [True, True]


EXACT = {"adam": {}, "lamb": {}, "zero-one": {"var_update_scaler": 1000}}
SHORT = {"adam": {"freeze_step": 40}, "lamb": {"freeze_step": 40}, "zero-one": {"var_freeze_step": 40}}


def trained(rank: int, size: int) -> dict[str, tuple[float, float, float]]:
    """Loss at first, after training, and after training without compression; the data is split over the ranks."""
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(64, 16, generator=generator)
    targets = inputs @ torch.randn(16, 1, generator=generator) + 0.5

    def loss_after(steps: int, make: type[Any], options: dict[str, Any]) -> float:
        mine, model = slice(rank, None, size), nn.Linear(16, 1)
        with torch.no_grad():
            model.weight.fill_(0.5)
            model.bias.zero_()
        optimizer = make(model.parameters(), **options)
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = 0.1 * (1 - step / steps)
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs[mine]), targets[mine]).backward()
            optimizer.step()
        assert (optimizer.bytes_sent > 0) == (options in SHORT.values() and steps > 0)
        return nn.functional.mse_loss(model(inputs), targets).item()

    return {
        kind: (loss_after(0, make, {}), loss_after(120, make, SHORT[kind]), loss_after(120, make, EXACT[kind]))
        for kind, (make, _) in KINDS.items()
    }


def test_they_learn_what_they_learn_without_compression():
    found = run_ranks(trained, 2)[0]

    for kind, (first, compressed, exact) in found.items():
        assert exact < 0.05 * first, (kind, found)
        assert compressed < 2 * exact + 0.01 * first, (kind, found)


def masked(rank: int, size: int) -> tuple[float, float]:
    """How far an element without any gradient moves after the freeze, with a mask and without."""
    moved = []
    for mask in (torch.tensor([1.0, 1.0, 0.0]), None):
        parameter = nn.Parameter(torch.zeros(3))
        optimizer = OneBitAdam([{"params": [parameter], "mask": mask}], freeze_step=2)
        for step in range(6):
            parameter.grad = torch.tensor([1.0, -1.0, 0.0]) * (step + 1)
            optimizer.step()
        moved.append(float(parameter[2].abs()))
    return moved[0], moved[1]


def test_a_mask_keeps_elements_without_gradient_where_they_are():
    with_mask, without = run_ranks(masked, 2)[0]

    assert with_mask == 0
    assert without > 1


def uneven(rank: int, size: int) -> list[float]:
    """Empty parameters, missing gradients, and a momentum of zeros."""
    found = []
    for make, options in KINDS.values():
        parameters = [nn.Parameter(torch.ones(shape)) for shape in ((4,), (0,), (2, 2), (3,))]
        optimizer = make(parameters, **options)
        for _ in range(10):
            parameters[0].grad = torch.ones(4)
            parameters[2].grad = torch.ones(2, 2) if rank == 0 else None
            optimizer.step()
        assert all(bool(parameter.isfinite().all()) for parameter in parameters)
        found.append(float(parameters[2].detach().sum()))
    return found


def test_empty_parameters_and_missing_gradients_keep_all_ranks_together():
    first, second = run_ranks(uneven, 2)

    assert first[:2] == second[:2]
    assert all(total < 4 for total in first)


def refusals(rank: int, size: int) -> list[str]:
    sentences = []
    wrong: list[tuple[type[Any], list[nn.Parameter], dict[str, Any]]] = [
        (OneBitAdam, [nn.Parameter(torch.ones(2).half())], {}),
        (OneBitAdam, [nn.Parameter(torch.ones(2))], {"lr": -1.0}),
        (OneBitAdam, [nn.Parameter(torch.ones(2))], {"betas": (0.9, 1.0)}),
        (OneBitLamb, [nn.Parameter(torch.ones(2))], {"freeze_step": 0}),
        (ZeroOneAdam, [nn.Parameter(torch.ones(2))], {"var_update_scaler": 0}),
    ]
    for make, parameters, options in wrong:
        with pytest.raises(UsageError) as raised:
            make(parameters, **options)
        sentences.append(str(raised.value))
    for make, options in KINDS.values():
        fine, sparse = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))
        optimizer = make([fine, sparse], **options)
        fine.grad, sparse.grad = torch.ones(2), torch.ones(3).to_sparse()
        before = copy.deepcopy(optimizer.state_dict())
        with pytest.raises(UsageError, match="dense gradients"):
            optimizer.step()
        sparse.grad, optimizer.param_groups[0]["mask"] = torch.ones(3), torch.ones(3)
        with pytest.raises(UsageError, match="mask has shape"):
            optimizer.step()
        assert optimizer.state_dict()["state"] == before["state"]
        assert fine.tolist() == [1, 1]
    return sentences


def test_what_they_cannot_do_is_refused_before_anything_changes():
    sentences = run_ranks(refusals, 1)[0]

    facts = ("takes float32 parameters", "lr is -1.0", "a beta is 1.0", "freeze_step is 0", "var_update_scaler is 0")
    assert [fact in sentence for fact, sentence in zip(facts, sentences, strict=True)] == [True] * 5


def other_world(rank: int, size: int) -> tuple[int, bool]:
    """A state of two ranks goes on with one, whose feedback has another size."""
    parameters = [nn.Parameter(tensor) for tensor in start()]
    optimizer = OneBitAdam(parameters, freeze_step=1)
    list(steps(optimizer, parameters, rank, range(3)))
    state = optimizer.state_dict()
    alone = [dist.new_group([0]), dist.new_group([1])][rank]
    ours = OneBitAdam(parameters, freeze_step=1, group=alone)
    ours.load_state_dict(state)
    list(steps(ours, parameters, rank, range(3, 5)))
    third = OneBitAdam(parameters, freeze_step=1)
    doubled = copy.deepcopy(state)
    for values in doubled["state"].values():
        values["worker_error"] = torch.ones(8 * values["worker_error"].numel())
    third.load_state_dict(doubled)
    list(steps(third, parameters, rank, range(3, 4)))
    sizes = third.state[parameters[2]]["worker_error"].numel()
    return sizes, bool(torch.isfinite(parameters[2]).all())


def test_feedback_of_another_number_of_ranks_starts_again():
    assert run_ranks(other_world, 2) == [(48, True), (48, True)]
