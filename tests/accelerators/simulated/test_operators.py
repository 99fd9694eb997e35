"""Operators compute on the device, below autograd, dispatch modes and the profiler."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint


@pytest.mark.parametrize("index", [0, 1])
def test_backward_on_every_device(sim: Any, index: int) -> None:
    x = torch.randn(3, 3, device=f"sim:{index}", requires_grad=True)
    (x * x).sum().backward()

    assert torch.equal(x.grad, 2 * x.detach())


@pytest.mark.parametrize("function", [torch.dot, torch.vdot, torch.mul, torch.add, torch.linalg.cross])
def test_a_missing_tangent_counts_as_zeros(sim: Any, function: Any) -> None:
    """Autograd gives it no memory. PyTorch hands it to the kernels of ``dot`` and ``vdot`` as it is."""
    x, y, tangent = (torch.randn(3, device="sim") for _ in range(3))
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(function(forward_ad.make_dual(x, tangent), y)).tangent
        due = forward_ad.unpack_dual(function(forward_ad.make_dual(x.cpu(), tangent.cpu()), y.cpu())).tangent

    torch.testing.assert_close(found.cpu(), due)


@pytest.mark.parametrize(
    "make", [lambda: torch.nn.LSTM(4, 5, 2), lambda: torch.nn.GRU(4, 5), lambda: torch.nn.RNN(4, 5)]
)
def test_recurrent_layers_train_as_on_the_host(sim: Any, make: Any) -> None:
    torch.manual_seed(0)
    host, inputs = make(), torch.randn(3, 2, 4)
    device = copy.deepcopy(host).to("sim")
    host(inputs)[0].square().sum().backward()
    device(inputs.to("sim"))[0].square().sum().backward()

    for expected, actual in zip(host.parameters(), device.parameters(), strict=True):
        torch.testing.assert_close(actual.grad.cpu(), expected.grad)


def test_devices_do_not_mix(sim: Any) -> None:
    x = torch.ones(3, device="sim")

    with pytest.raises(RuntimeError, match="sim:0 and cpu"):
        x + torch.ones(3)
    with pytest.raises(RuntimeError, match="sim:0 and sim:1"):
        x + torch.ones(3, device="sim:1")
    assert (x + torch.tensor(1.0)).tolist() == [2, 2, 2]


def test_an_operator_is_not_taken_for_one_that_is_gone(sim: Any) -> None:
    """Libraries come and go, and the memory of their schemas is used again."""
    x = torch.ones(3, device="sim")
    kinds = [
        ("(Tensor x) -> Tensor", lambda x: x + 1, lambda operator: operator(x), 2),
        ("(Tensor x, Tensor y) -> Tensor", lambda x, y: x + y, lambda operator: operator(x, x), 2),
        ("(Tensor x, int n) -> (Tensor, Tensor)", lambda x, n: (x + n, x - n), lambda operator: operator(x, 3)[1], -2),
    ]
    for turn in range(60):
        schema, kernel, call, due = kinds[turn % 3]
        library = torch.library.Library(f"turn_{turn}", "DEF")
        library.define("work" + schema)
        library.impl("work", kernel, "CPU")
        found = call(getattr(torch.ops, f"turn_{turn}").work)
        library._destroy()

        assert found.tolist() == [due] * 3, turn


def test_drawing_leaves_the_host_generator_alone(sim: Any) -> None:
    state = torch.get_rng_state()
    torch.nn.functional.dropout(torch.ones(100, device="sim"))
    torch.randperm(5, device="sim")

    assert torch.equal(torch.get_rng_state(), state)


def test_generators_repeat(sim: Any) -> None:
    generator = torch.Generator("sim:1").manual_seed(5)
    first = torch.rand(3, device="sim:1", generator=generator)

    assert torch.equal(torch.rand(3, device="sim:1", generator=generator.manual_seed(5)), first)


def test_checkpointing_restores_the_device_generator(sim: Any) -> None:
    def dropped(t: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(t * t, 0.5)

    x = torch.randn(50, device="sim", requires_grad=True)
    torch.manual_seed(0)
    (again,) = torch.autograd.grad(checkpoint(dropped, x, use_reentrant=False).sum(), x)
    torch.manual_seed(0)
    (plain,) = torch.autograd.grad(dropped(x).sum(), x)

    assert torch.equal(again, plain)


def test_save_and_load(sim: Any) -> None:
    file = io.BytesIO()
    x = torch.arange(4.0, device="sim:1")
    torch.save(x, file)
    file.seek(0)
    loaded = torch.load(file)

    assert loaded.device == x.device
    assert torch.equal(loaded, x)


def test_dlpack_shares_memory(sim: Any) -> None:
    x = torch.arange(4.0, device="sim")
    torch.from_dlpack(x).add_(1)

    assert x.tolist() == [1, 2, 3, 4]


def test_out_argument_is_resized(sim: Any) -> None:
    out = torch.empty(0, device="sim")
    torch.add(torch.ones(100, device="sim"), 1, out=out)

    assert out.sum().item() == 200


def test_in_place_result_of_another_shape_is_refused(sim: Any) -> None:
    x = torch.ones(5, 1, device="sim")

    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        x.logical_and_(torch.ones(5, device="sim"))


def test_autocast(sim: Any) -> None:
    m = torch.ones(4, 4, device="sim")
    with torch.autocast("sim", dtype=torch.bfloat16):
        product = m @ m
        assert product.dtype == torch.bfloat16
        assert torch.softmax(product, 0).dtype == torch.float32


def test_profiler_shows_device_time(sim: Any) -> None:
    from torch.profiler import ProfilerActivity, profile

    m = torch.ones(100, 100, device="sim")
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as recorded:
        m @ m

    event = next(e for e in recorded.events() if e.name == "aten::mm")
    assert event.device_time > 1


def test_overlap_of_arguments_is_noticed(sim: Any) -> None:
    x = torch.ones(3, device="sim")

    with pytest.raises(RuntimeError, match="single memory location"):
        torch.gather(x, 0, torch.zeros(2, dtype=torch.long, device="sim"), out=x[:2])
