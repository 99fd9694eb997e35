"""ZeRO's stages over buckets of any size against one collective for each gradient, bit for bit."""

from __future__ import annotations

import functools
import weakref
from typing import Any

import pytest
import torch
import torch.distributed as dist

from conformance.base.errors import UsageError
from conformance.kernels.sharded import Layout, ZeroGradients
from tests.kernels.ranks import run_ranks

#: Below the smallest gradient, between them, as many as all of them and more.
SIZES = (1, 6, 20, 45, 1000)
PASSES = 3


def a_model() -> torch.nn.Module:
    """Whole numbers everywhere: their sums are the same in every order."""
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randint(-3, 4, parameter.shape, generator=generator))
    return model


def loss(model: torch.nn.Module, rank: int, micro: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * rank + micro)
    taken = torch.randint(-4, 5, (8, 5), generator=generator).float()
    return (model(taken) * torch.tensor([1.0, -2.0, 4.0])).sum()


def tensor_by_tensor(rank: int, size: int) -> dict[str, list[float]]:
    """Each gradient summed by a collective of its own, and this rank's part of its mean."""
    model, found = a_model(), {}
    for micro in range(PASSES):
        loss(model, rank, micro).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad)
        layout = Layout(tuple(parameter.shape), size)
        found[name] = layout.rows(parameter.grad / size)[rank][: layout.own(rank)].tolist()
    return found


def stages(rank: int, size: int) -> int:
    expected, seen = tensor_by_tensor(rank, size), 0
    for stage in (1, 2):
        for elements in SIZES:
            for double_buffer in (False, True):
                model = a_model()
                gradients = ZeroGradients(
                    dict(model.named_parameters()), elements, stage=stage, double_buffer=double_buffer
                )
                for _ in range(2):  # the second update has nothing left of the first
                    for micro in range(PASSES):
                        loss(model, rank, micro).backward()
                    gradients.reduce()
                    assert {name: gradients.shard(name).tolist() for name in expected} == expected, (stage, elements)
                    gradients.clear()
                    assert all(parameter.grad is None for parameter in model.parameters())
                seen += 1
    return seen


@pytest.mark.parametrize("size", [2, 4])
def test_every_stage_and_bucket_size_gives_the_shards_of_one_collective_a_gradient(size: int) -> None:
    assert run_ranks(stages, size) == [2 * 2 * len(SIZES)] * size


def remember(gradients: list[Any], parameter: torch.Tensor) -> None:
    gradients.append(weakref.ref(parameter.grad))


def keeping(rank: int, size: int) -> dict[int, Any]:
    """Of each stage: gradients after each pass and in the end, early collectives, memory in use, what close does."""
    found = {}
    for stage in (1, 2):
        model = a_model()
        parameters = dict(model.named_parameters())
        seen: list[Any] = []
        for parameter in parameters.values():
            parameter.register_post_accumulate_grad_hook(functools.partial(remember, seen))
        gradients = ZeroGradients(parameters, 20, stage=stage)
        kept, collectives = [], []
        for micro in range(2):
            loss(model, rank, micro).backward()
            kept.append(sum(parameter.grad is not None for parameter in parameters.values()))
            collectives.append(gradients.buckets.collectives)
        alive = sum(one() is not None for one in seen[:4])
        gradients.reduce()
        kept.append(sum(parameter.grad is not None for parameter in parameters.values()))
        gradients.close()
        gradients.clear()
        loss(model, rank, 0).backward()
        left_alone = all(parameter.grad is not None for parameter in parameters.values())
        found[stage] = (kept, collectives[0] > 0, alive, left_alone)
    return found


def test_stage_1_keeps_gradients_until_the_update_and_stage_2_releases_them_in_the_pass() -> None:
    for found in run_ranks(keeping, 2):
        assert found[1] == ([4, 4, 4], False, 4, True)
        assert found[2] == ([0, 0, 0], True, 0, True)


def test_another_stage_is_refused() -> None:
    with pytest.raises(UsageError, match="give 1 or 2"):
        ZeroGradients({}, 4, stage=3)
