"""What ``torch_supa_ext.deepspeed`` registers is right. tests/acceptance/test_standin.py runs it in its own process.

PyTorch has room for one out-of-tree device in a process, and other tests here use it for another one.
"""

from __future__ import annotations

import pytest
import torch
import torch_supa_ext.deepspeed  # noqa: F401 - it registers what is checked
from torch.nn import functional as nn
from torch_supa_ext import names

from conformance.accelerators.registry import resolve
from conformance.kernels.injection import Injector

OPS = torch.ops.deepspeed
ADAM_MODES = {0: torch.optim.Adam, 1: torch.optim.AdamW}


def device(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to("supa")


def close(found: torch.Tensor, expected: torch.Tensor, **bounds: float) -> None:
    assert found.device.type == "supa"
    torch.testing.assert_close(found.cpu(), expected, **bounds)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("name", names.IMPLEMENTED)
def test_what_computes_is_for_the_vendors_device_alone(name):
    kernel = f"deepspeed::{name}"

    assert torch._C._dispatch_has_kernel_for_dispatch_key(kernel, "PrivateUse1")
    assert not torch._C._dispatch_has_kernel_for_dispatch_key(kernel, "CPU")


def test_fake_kernels_give_the_shapes_and_dtypes_of_the_real_ones():
    def like(arguments, target):
        return [
            argument.to(target) if isinstance(argument, torch.Tensor)
            else [one.to(target) for one in argument] if isinstance(argument, list) else argument
            for argument in arguments
        ]  # fmt: skip

    image, wide, bias = torch.randn(2, 4, 3, 3), torch.randn(3, 8), torch.randn(8)
    lists, packed = [torch.randn(5)], torch.randint(0, 99, (4, 8), dtype=torch.int8)
    calls = {
        "layer_norm": (wide, bias, bias, 1e-5),
        "layer_norm_residual_store_pre_ln_res": (wide, bias, wide, bias, bias, 1e-5),
        "nhwc_bias_add": (image, torch.randn(4)),
        "quantize": (wide.half(), 3, 4, 1),
        "dequantize": (packed, torch.randn(4, 2), 4, 4, 1),
        "gated_activation": (wide, bias, 3),
        "residual_add_bias": (wide, wide, wide, bias, bias, 2, True, True, True),
        "multi_tensor_lion": (64, torch.zeros(1), lists, lists, lists, 0.1, 0.9, 0.99, 1, 0.1),
    }
    for name, arguments in calls.items():
        real, fake = (getattr(OPS, name)(*like(arguments, target)) for target in ("supa", "meta"))
        pairs = zip(real, fake, strict=True) if isinstance(real, list) else () if real is None else [(real, fake)]
        for one, other in pairs:
            assert (one.shape, one.dtype, one.stride()) == (other.shape, other.dtype, other.stride()), name


@pytest.mark.parametrize(
    ("space", "name"), [*(("deepspeed", name) for name in names.STUBS), *(("dc", name) for name in names.COMPILE_STUBS)]
)
def test_a_stub_takes_anything_and_raises(space, name):
    stub = getattr(getattr(torch.ops, space), name)

    with pytest.raises(NotImplementedError, match=f"{name} is not implemented on supa"):
        stub(torch.ones(2, device="supa"), [torch.ones(1)], 0.5, None)
    with pytest.raises(NotImplementedError, match="not implemented"):
        stub()


@pytest.mark.parametrize("mode", ADAM_MODES)
def test_adam(mode):
    start, gradients = torch.randn(33), torch.randn(3, 33)
    parameter = torch.nn.Parameter(start.clone())
    optimizer = ADAM_MODES[mode]([parameter], lr=0.1, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.2)
    p, m, v = (device(tensor) for tensor in (start, torch.zeros(33), torch.zeros(33)))

    for step, gradient in enumerate(gradients, start=1):
        parameter.grad = gradient.clone()
        optimizer.step()
        lists = ([device(gradient)], [p], [m], [v])
        OPS.multi_tensor_adam(65536, flag(0), *lists, 0.1, 0.9, 0.99, 1e-8, step, mode, 1, 0.2)

    close(p, parameter.detach())


def test_lion():
    parameter, gradient, moment = torch.randn(33), torch.randn(33), torch.randn(33)
    p, m = device(parameter), device(moment)

    OPS.multi_tensor_lion(65536, flag(0), [device(gradient)], [p], [m], 0.1, 0.9, 0.99, 1, 0.2)

    direction = (0.9 * moment + 0.1 * gradient).sign()
    close(p, parameter - 0.1 * (direction + 0.2 * parameter))
    close(m, 0.99 * moment + 0.01 * gradient)


def test_an_overflow_skips_the_step():
    p, m, v = (torch.ones(5, device="supa") for _ in range(3))

    OPS.multi_tensor_adam(65536, flag(1), [p.clone()], [p], [m], [v], 0.1, 0.9, 0.99, 1e-8, 1, 1, 1, 0.2)
    OPS.multi_tensor_lion(65536, flag(1), [p.clone()], [p], [m], 0.1, 0.9, 0.99, 1, 0.2)

    assert bool((torch.stack([p, m, v]) == 1).all())


def flag(value: int) -> torch.Tensor:
    return torch.supa.IntTensor([value])


def test_layer_norms():
    source, residual = torch.randn(2, 4, 32).unbind()
    bias, gamma, beta = torch.randn(3, 32).unbind()
    total = source + bias + residual
    five = [device(tensor) for tensor in (source, bias, residual, gamma, beta)]

    close(OPS.layer_norm(five[0], five[3], five[4], 1e-5), nn.layer_norm(source, (32,), gamma, beta))
    close(OPS._layer_norm_residual(*five, 1e-5), nn.layer_norm(total, (32,), gamma, beta))
    normal, stored = OPS.layer_norm_residual_store_pre_ln_res(*five, 1e-5)
    close(normal, nn.layer_norm(total, (32,), gamma, beta))
    close(stored, total)


IN_PLACE = {
    "bias_add": lambda x, b: x + b,
    "bias_relu": lambda x, b: (x + b).relu(),
    "bias_gelu": lambda x, b: nn.gelu(x + b, approximate="tanh"),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_biases_are_added_in_place(name):
    source, bias = torch.randn(4, 32), torch.randn(32)
    target = device(source)

    result = getattr(OPS, name)(target, device(bias))

    assert result.data_ptr() == target.data_ptr()
    close(target, IN_PLACE[name](source, bias))


def test_sums_in_place():
    source, residual, bias = torch.randn(4, 32), torch.randn(4, 32), torch.randn(32)

    close(OPS.bias_residual(device(source), device(residual), device(bias)), source + residual + bias)
    close(OPS._vector_add(device(source), device(residual), 0.5), 0.5 * source + residual)
    weights = torch.randn(64)
    expected = residual * weights[:32] + source * weights[32:]
    close(OPS.moe_res_matmul(device(residual), device(weights), device(source)), expected)


@pytest.mark.parametrize(
    ("after_attention", "normalised_before", "weights"),
    [(True, True, (1, 0.5, 0.5, 0.5, 0.5)), (True, False, (1, 1, 0, 0, 1)), (False, True, (1, 0.5, 1, 0.5, 0.5))],
)
def test_the_sum_at_a_layers_end(after_attention, normalised_before, weights):
    # Of hidden state, residual, attention, its bias and the final bias, on two ranks.
    hidden, residual, attention = torch.randn(3, 4, 32).unbind()
    bias, final = torch.randn(2, 32).unbind()
    parts = (hidden, residual, attention, bias, final)

    found = OPS.residual_add_bias(*map(device, parts), 2, after_attention, True, normalised_before)

    close(found, sum(weight * part for weight, part in zip(weights, parts, strict=True)))


@pytest.mark.parametrize(("func", "gate"), [(3, nn.gelu), (4, nn.silu)])
def test_gates(func, gate):
    source, bias = torch.randn(4, 32), torch.randn(32)
    left, right = (source + bias).chunk(2, dim=-1)

    close(OPS.gated_activation(device(source), device(bias), func), left * gate(right))


def test_biases_of_images():
    source, other = torch.randn(2, 2, 3, 4, 5).unbind()
    bias, other_bias = torch.randn(2, 3).unbind()
    x, b, y, c = map(device, (source, bias, other, other_bias))
    expected = source + bias[:, None, None]

    found = OPS.nhwc_bias_add(x, b)

    assert found.is_contiguous(memory_format=torch.channels_last)
    close(found.contiguous(), expected)
    close(OPS.nhwc_bias_add_add(x, b, y).contiguous(), expected + other)
    close(OPS.nhwc_bias_add_bias_add(x, b, y, c).contiguous(), expected + other + other_bias[:, None, None])


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("kind", [0, 1])
def test_quantization_goes_there_and_back(bits, kind):
    values = torch.randn(4, 64)
    groups = values.reshape(8, -1)
    width = groups.amax(1) - groups.amin(1) if kind else 2 * groups.abs().amax(1)
    # The largest number of a group may have to go one step down.
    bound = (width / 2**bits)[:, None] * 1.01 + 1e-3

    data, params = OPS.quantize(device(values), 8, bits, kind)

    assert data.dtype is torch.int8
    assert data.shape == (4, 64 * bits // 8)
    assert params.shape == (8, 1 + kind)
    for name, dtype in (("dequantize", torch.float16), ("dequantize_fp32", torch.float32)):
        back = getattr(OPS, name)(data, params, 8, bits, kind)
        assert back.dtype is dtype
        assert bool(((back.cpu().float().reshape(8, -1) - groups).abs() <= bound).all())
    fake = (OPS.ds_quantize_asym if kind else OPS.ds_quantize)(device(values), 8, bits).cpu()
    assert bool(((fake.reshape(8, -1) - groups).abs() <= bound).all())


def test_unsigned_numbers_have_a_scale_and_a_minimum():
    numbers, scale, minimum = torch.randint(0, 16, (2, 8)), torch.tensor([0.5, 2.0]), torch.tensor([-1.0, 3.0])
    expected = (numbers / scale[:, None] + minimum[:, None]).half()
    packed = (numbers[:, 1::2] | numbers[:, ::2] << 4).to(torch.uint8)
    tail = (device(scale), device(minimum), 2, 8)

    close(OPS.dequantize_int8_to_half_experimental(device(numbers.to(torch.uint8)), *tail), expected)
    close(OPS.dequantize_int4_to_half_experimental(device(packed), *tail), expected)


def test_injected_kernels_are_the_vendors_where_it_has_them():
    injector = Injector(resolve("supa").load())
    source, weight = torch.randn(1, 3, 32), torch.randn(5, 32)
    ones, zeros = torch.ones(32), torch.zeros(32)

    normal = injector.kernel("layer_norm")(device(source), device(ones), device(zeros), 1e-5)
    product = injector.kernel("vector_matmul")(device(source), device(weight), False, device(zeros), False, True)

    close(normal, nn.layer_norm(source, (32,)))
    close(product, source @ weight.t())
    told = {row.kernel: (row.implementation.value, row.reason) for row in injector.told()}
    assert told["layer_norm"] == ("vendor", "torch.ops.deepspeed.layer_norm")
    assert told["vector_matmul"][0] == "reference"
    assert "torch.ops.deepspeed.vector_matmul refuses: vector_matmul is not implemented" in told["vector_matmul"][1]


def test_attention_falls_back_with_its_workspace():
    injector = Injector(resolve("supa").load())
    together, nothing = torch.randn(2, 3, 24), torch.zeros(1, device="supa")
    sizes = (8, 1, 3, 2, 1, 1, False, 0, 3, 1)

    injector.companion("softmax_context", "allocate_workspace_fp32")(*sizes)
    attend = injector.kernel("softmax_context")
    found, _, _ = attend(
        device(together), nothing, 0, False, False, 1, 0, 8**-0.25, True, False, 1, True, 0, 1, nothing, 1e4, True,
        None, None,
    )  # fmt: skip

    q, k, v = together.chunk(3, dim=-1)
    close(found, nn.scaled_dot_product_attention(q, k, v, is_causal=True))
    (row,) = injector.told()
    assert (row.implementation.value, "allocate_workspace is not implemented" in row.reason) == ("reference", True)
    injector.companion("softmax_context", "release_workspace")()
