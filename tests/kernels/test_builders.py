"""Builders follow one convention, and what they load computes what the papers say."""

from __future__ import annotations

import importlib
import pkgutil

import pytest
import torch

from conformance.accelerators.registry import resolve
from conformance.kernels.builders import BUILDERS, NotImplementedBuilder, find_builder


@pytest.mark.parametrize("name", sorted(BUILDERS))
def test_a_builder_is_found_by_its_name_and_loads_once(name):
    builder = find_builder(name)()

    assert builder.is_compatible() is True
    assert builder.load() is find_builder(name)().load()
    assert isinstance(builder.NAME, str)


def test_an_unknown_name_gives_a_builder_that_says_no():
    builder = find_builder("NoSuchBuilder")()

    assert isinstance(builder, NotImplementedBuilder)
    assert builder.is_compatible() is False
    with pytest.raises(NotImplementedError, match="FusedAdamBuilder"):
        builder.load()


@pytest.mark.parametrize(("mode", "optimizer"), [(0, torch.optim.Adam), (1, torch.optim.AdamW)])
def test_adam_agrees_with_torch(mode, optimizer):
    generator = torch.Generator().manual_seed(1)
    start = torch.randn(65, generator=generator, dtype=torch.float64)
    theirs = torch.nn.Parameter(start.clone())
    step_of = optimizer([theirs], lr=0.1, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.01)
    ours, mean, square = start.clone(), torch.zeros_like(start), torch.zeros_like(start)
    adam = find_builder("FusedAdamBuilder")().load().multi_tensor_adam

    for step in range(1, 4):
        theirs.grad = torch.randn(65, generator=generator, dtype=torch.float64)
        lists = [[theirs.grad], [ours], [mean], [square]]
        adam(2048, torch.zeros(1, dtype=torch.int32), lists, 0.1, 0.9, 0.99, 1e-8, step, mode, 1, 0.01)
        step_of.step()

    torch.testing.assert_close(ours, theirs.detach(), rtol=1e-12, atol=1e-12)


def test_lion_takes_steps_of_one_size():
    gradient, parameter = torch.tensor([3.0, -2.0]), torch.tensor([1.0, 1.0])
    mean = torch.tensor([0.0, 1.0])
    lion = find_builder("FusedLionBuilder")().load().multi_tensor_lion

    lion(2048, torch.zeros(1, dtype=torch.int32), [[gradient], [parameter], [mean]], 0.5, 0.9, 0.5, 1, 0.0)

    # directions: sign(0.9·0 + 0.1·3) = +1 and sign(0.9·1 − 0.1·2) = +1
    assert parameter.tolist() == [0.5, 0.5]
    assert mean.tolist() == [1.5, -0.5]


def test_an_overflow_leaves_everything_as_it_is():
    tensors = [torch.ones(3) for _ in range(4)]
    overflow = torch.ones(1, dtype=torch.int32)

    find_builder("FusedAdamBuilder")().load().multi_tensor_adam(
        2048, overflow, [[tensor] for tensor in tensors], 0.1, 0.9, 0.99, 1e-8, 1, 1, 1, 0.1
    )
    find_builder("FusedLionBuilder")().load().multi_tensor_lion(
        2048, overflow, [[tensor] for tensor in tensors[:3]], 0.1, 0.9, 0.99, 1, 0.1
    )

    assert all(torch.equal(tensor, torch.ones(3)) for tensor in tensors)


def test_sixteen_bit_parameters_are_updated_in_float32():
    parameter = torch.full((5,), 256.0, dtype=torch.bfloat16)
    gradient = torch.ones(5, dtype=torch.bfloat16)
    mean = torch.zeros(5, dtype=torch.bfloat16)

    find_builder("FusedLionBuilder")().load().multi_tensor_lion(
        2048, torch.zeros(1, dtype=torch.int32), [[gradient], [parameter], [mean]], 1.5, 0.9, 0.99, 1, 0.0
    )

    assert mean.tolist() == pytest.approx([0.01] * 5, rel=2**-8)
    assert parameter.tolist() == [254.0] * 5  # 254.5 rounds to even among bfloat16's steps of one


def test_deepspeed_finds_every_builder_in_the_package():
    """DeepSpeed imports each module of the package but two, and creates every name that ends in Builder."""
    accelerator = resolve("cpu").load()
    folder = importlib.import_module(accelerator.op_builder_dir()).__path__
    modules = [
        importlib.import_module(f"{accelerator.op_builder_dir()}.{module.name}")
        for module in pkgutil.iter_modules(folder)
        if module.name not in ("all_ops", "builder")
    ]
    names = {name for module in modules for name in vars(module) if name.endswith("Builder")}

    found = {name: accelerator.create_op_builder(name) for name in names}

    assert names == set(BUILDERS)
    assert {builder.name for builder in found.values()} == {kind.NAME for kind in BUILDERS.values()}
    assert all(type(builder.is_compatible()) is bool for builder in found.values())
