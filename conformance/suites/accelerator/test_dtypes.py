"""Data types: stored, copied and cast without loss, accumulated as declared."""

from __future__ import annotations

import math

import pytest
import torch

from conformance.accelerators.capabilities import (
    COPY,
    DEVICE,
    DTYPE,
    DTYPES,
    FLOATING_DTYPES,
)
from conformance.case import Level, case
from conformance.finding import environment_lacks

from .patterns import bytes_of, edge_values, random_bits

FLOATS = [name for name in DTYPES if name in FLOATING_DTYPES]
WITH_BITS = [name for name in DTYPES if name.startswith(("float", "bfloat"))]
LAYOUTS = ("contiguous", "transposed", "strided", "offset", "scalar", "empty")


def dtype_of(name):
    return getattr(torch, name)


def differing_bytes(left, right):
    """How many bytes differ between two tensors of one dtype and shape."""
    assert left.dtype == right.dtype and left.shape == right.shape, f"{left.dtype} {left.shape} is another tensor"
    return int((bytes_of(left) != bytes_of(right)).sum())


@case("accelerator.dtype.supported_list", requires=[DEVICE], level=Level.CORE)
def test_supported_list(accelerator):
    """supported_dtypes() is a list of different floating-point dtypes, float32 among them."""
    listed = accelerator.supported_dtypes()

    assert type(listed) is list, f"supported_dtypes() answers a {type(listed).__name__}, not a list"
    assert all(isinstance(dtype, torch.dtype) for dtype in listed), f"supported_dtypes() answers {listed}"
    assert torch.float32 in listed, f"float32 is not in supported_dtypes(): {listed}"
    assert len(set(listed)) == len(listed), f"supported_dtypes() repeats itself: {listed}"


@case(
    "accelerator.dtype.supported_agrees", requires=[DEVICE], level=Level.CORE, axes={"dtype": ["float16", "bfloat16"]}
)
def test_supported_agrees(accelerator, dtype):
    """The list and the method of that dtype say the same, and the method answers a bool."""
    method = {"float16": "is_fp16_supported", "bfloat16": "is_bf16_supported"}[dtype]

    answer, listed = getattr(accelerator, method)(), dtype_of(dtype) in accelerator.supported_dtypes()

    assert type(answer) is bool, f"{method}() answers {answer!r}, which is no bool"
    assert answer is listed, f"{method}() is {answer}, yet {dtype} is {'' if listed else 'not '}in supported_dtypes()"


@case("accelerator.dtype.copy", requires=[DTYPE, COPY], axes={"dtype": DTYPES})
def test_copy(device, dtype):
    """Random bits, NaN payloads among them, go to the device, around on it, and back without a change."""
    source = random_bits(dtype_of(dtype), 4099)

    there = source.to(device, copy=True)
    ways = {
        "to and cpu": there.cpu(),
        "clone": there.clone().cpu(),
        "copy_ on the device": torch.empty_like(there).copy_(there).cpu(),
        "copy_ to the host": torch.empty_like(source).copy_(there),
        "copy_ from the host": torch.empty_like(there).copy_(source).cpu(),
        "to(dtype)": there.to(dtype_of(dtype), copy=True).cpu(),
    }

    for way, result in ways.items():
        assert differing_bytes(result, source) == 0, f"{way}: {differing_bytes(result, source)} bytes changed"


@case("accelerator.dtype.float32_copy", requires=[COPY], level=Level.CORE)
def test_float32_copy(device):
    """float32 keeps every bit on its way to the device and back: NaN payloads, -0.0, subnormals, infinities."""
    for source in (random_bits(torch.float32, 65537), edge_values(torch.float32)):
        result = source.to(device, copy=True).cpu()
        assert differing_bytes(result, source) == 0, f"{differing_bytes(result, source)} bytes changed"


@case("accelerator.dtype.copy_edges", requires=[DTYPE, COPY], axes={"dtype": WITH_BITS})
def test_copy_edges(device, dtype):
    """NaN with payloads, ±0, ±infinity, the smallest and largest numbers and subnormals survive a copy, bit for bit."""
    source = edge_values(dtype_of(dtype))

    result = source.to(device, copy=True).clone().cpu()

    wrong = (bytes_of(result) != bytes_of(source)).view(len(source), -1).any(dim=1).nonzero().flatten().tolist()
    assert not wrong, f"values {wrong} of {source.tolist()} came back as {result.tolist()}"


@case("accelerator.dtype.copy_layouts", requires=[COPY], level=Level.CORE, axes={"layout": LAYOUTS})
def test_copy_layouts(device, layout):
    """Views keep their values when copied, in either direction, and a copy into a view hits nothing else."""
    base = random_bits(torch.float32, 64 * 33).view(64, 33)
    take = {
        "contiguous": lambda t: t,
        "transposed": lambda t: t.t(),
        "strided": lambda t: t[::3, 1::2],
        "offset": lambda t: t[7:, 5:],
        "scalar": lambda t: t[3, 4],
        "empty": lambda t: t[:0],
    }[layout]

    there = base.to(device, copy=True)
    read, target = take(there).cpu(), torch.zeros(64, 33, device=device)
    take(target).copy_(take(base))
    expected = torch.zeros(64, 33)
    take(expected).copy_(take(base))

    assert differing_bytes(read.contiguous(), take(base).contiguous()) == 0, "a view came back changed"
    assert differing_bytes(target.cpu(), expected) == 0, "a copy into a view went elsewhere"


@case("accelerator.dtype.copy_broadcast", requires=[COPY], level=Level.CORE)
def test_copy_broadcast(device):
    """copy_ broadcasts and casts on the way."""
    target = torch.zeros(5, 7, device=device)

    target.copy_(torch.arange(7))

    assert target.tolist() == [[float(n) for n in range(7)]] * 5, f"broadcast copy gives {target.tolist()}"


@case("accelerator.dtype.metadata", requires=[DTYPE], axes={"dtype": DTYPES})
def test_metadata(device, dtype):
    """Fresh tensors have the dtype, the size per element and the device they were asked for."""
    tensor = torch.empty(3, 5, dtype=dtype_of(dtype), device=device)
    fresh = (tensor, torch.empty_like(tensor), tensor.new_empty(2), torch.zeros(3, dtype=tensor.dtype, device=device))

    for each in fresh:
        assert each.dtype is dtype_of(dtype) and each.device.type == device.type, f"{each.dtype} on {each.device}"
    assert tensor.element_size() == torch.empty(0, dtype=tensor.dtype).element_size()
    assert tensor.untyped_storage().nbytes() >= 15 * tensor.element_size()


@case("accelerator.dtype.cast_from_float32", requires=[DTYPE], axes={"dtype": DTYPES})
def test_cast_from_float32(device, dtype):
    """Casts from float32 round, truncate and compare with zero as PyTorch's do, bit for bit."""
    values = torch.cat([torch.linspace(-100.0, 100.0, 4099), torch.tensor([0.0, 1.0, 0.5, 1.5, 2.5, 1 / 3])])
    source = values.abs() if dtype == "uint8" else values

    result = source.to(device).to(dtype_of(dtype)).cpu()

    expected = source.to(dtype_of(dtype))
    wrong = differing_bytes(result, expected)
    assert wrong == 0, f"{wrong} bytes of the cast differ"


@case("accelerator.dtype.cast_to_float32", requires=[DTYPE], axes={"dtype": DTYPES})
def test_cast_to_float32(device, dtype):
    """Casts to float32 are exact: every value of the narrower dtypes, numbered values of the others."""
    narrow = dtype_of(dtype)
    if narrow.is_complex:
        source = torch.arange(-500, 500).to(narrow).real
    elif torch.empty(0, dtype=narrow).element_size() <= 2 and narrow is not torch.bool:
        source = torch.arange(256 ** torch.empty(0, dtype=narrow).element_size()).to(torch.int32)
        source = source.view(torch.uint8).view(len(source), 4)[:, : narrow.itemsize].contiguous().view(narrow).flatten()
    else:
        source = torch.arange(-500, 500).to(narrow)

    result = source.to(device).to(torch.float32).cpu()

    expected = source.to(torch.float32)
    number = ~expected.isnan()
    assert torch.equal(result.isnan(), expected.isnan()), "NaN became a number, or a number NaN"
    wrong = int((bytes_of(result[number].contiguous()) != bytes_of(expected[number].contiguous())).sum())
    assert wrong == 0, f"{wrong} bytes of the cast to float32 differ"


@case("accelerator.dtype.cast_special", requires=[DTYPE], axes={"dtype": FLOATS})
def test_cast_special(device, dtype):
    """Casts keep infinities, NaN and the sign of zero, and overflow to infinity."""
    source = torch.tensor([math.inf, -math.inf, math.nan, 0.0, -0.0, 3e38, -3e38])

    result = source.to(device).to(dtype_of(dtype)).to(torch.float64 if dtype == "float64" else torch.float32).cpu()

    expected = source.to(dtype_of(dtype)).to(result.dtype)
    assert result.isnan().tolist() == expected.isnan().tolist(), f"NaN is lost: {result.tolist()}"
    assert torch.equal(result.nan_to_num(0.0), expected.nan_to_num(0.0)), f"{result.tolist()}, not {expected.tolist()}"
    assert torch.equal(result.signbit()[3:], expected.signbit()[3:]), f"a sign is lost: {result.tolist()}"


@case("accelerator.dtype.compute", requires=[DTYPE], axes={"dtype": FLOATS})
def test_compute(accelerator, device, dtype):
    """Sums, products, matrix products and their gradients are right; small integers make them exact."""
    left = (torch.arange(35) % 7 - 3).view(5, 7).to(dtype_of(dtype)).to(device).requires_grad_()
    right = (torch.arange(21) % 5 - 2).view(7, 3).to(dtype_of(dtype)).to(device).requires_grad_()

    result = torch.relu(left @ right + 1) * 2
    result.sum().backward()

    wide = [tensor.detach().cpu().double().requires_grad_() for tensor in (left, right)]
    expected = torch.relu(wide[0] @ wide[1] + 1) * 2
    expected.sum().backward()
    for name, found, right_one in (
        ("result", result.detach(), expected.detach()),
        ("gradient of the left", left.grad, wide[0].grad),
        ("gradient of the right", right.grad, wide[1].grad),
    ):
        assert found.dtype is dtype_of(dtype), f"the {name} is {found.dtype}"
        wrong = int((found.cpu().double() != right_one).sum())
        assert wrong == 0, f"{wrong} of {found.numel()} elements of the {name} are wrong"


@case("accelerator.dtype.item", requires=[DTYPE], axes={"dtype": FLOATS})
def test_item(device, dtype):
    """item(), tolist() and float() give the host the value with its fraction and sign."""
    source = torch.tensor([2.75, -2.75, 0.1, -0.0, 1e-4, 60000.0], dtype=dtype_of(dtype))

    there = source.to(device)
    ways = {
        "item()": [one.item() for one in there],
        "tolist()": there.tolist(),
        "float()": [float(one) for one in there],
    }

    for way, found in ways.items():
        assert [str(value) for value in found] == [str(value) for value in source.tolist()], f"{way} gives {found}"


@case("accelerator.dtype.listed_compute", requires=[DEVICE], level=Level.CORE)
def test_listed_compute(accelerator, device):
    """Every dtype in supported_dtypes() computes a matrix product and its gradient."""
    for dtype in accelerator.supported_dtypes():
        factor = torch.full((9, 9), 2.0, dtype=dtype, device=device, requires_grad=True)
        (factor @ factor).sum().backward()
        assert factor.grad.dtype is dtype, f"the gradient of {dtype} is {factor.grad.dtype}"
        assert bool((factor.grad == 36).all()), f"{dtype} is listed; its gradient is {factor.grad[0, 0].item()}, not 36"


@case("accelerator.dtype.float64_flag", requires=[DEVICE])
def test_float64_flag(accelerator, device):
    """is_fp64_supported() is a bool, and if it is True float64 keeps float64 precision."""
    answer = accelerator.is_fp64_supported()
    assert type(answer) is bool, f"is_fp64_supported() answers {answer!r}"
    if not answer:
        return

    third = torch.full((17,), 1.0, dtype=torch.float64, device=device) / 3

    assert (third * 3 - 1).abs().max().item() < 1e-15, "is_fp64_supported(), but quotients have float32 precision"
    assert third.cpu()[0].item() == 1 / 3, f"1/3 is {third.cpu()[0].item()!r}"


@case("accelerator.dtype.no_silent_change", requires=[DEVICE])
def test_no_silent_change(device):
    """A dtype the device lacks raises when a tensor of it is made; it is never replaced by another."""
    made = 0
    for name in DTYPES:
        try:
            tensor = torch.zeros(3, dtype=dtype_of(name), device=device)
        except Exception:
            continue
        made += 1
        assert tensor.dtype is dtype_of(name), f"asked for {name}, got {tensor.dtype}"
    if not made:
        environment_lacks("no dtype can be made here")


@case("accelerator.dtype.wrong_size_raises", requires=[COPY], level=Level.CORE)
def test_wrong_size_raises(device):
    """Copying between shapes that do not fit raises, and writes nothing."""
    target = torch.full((7,), 3.0, device=device)

    with pytest.raises(RuntimeError):
        target.copy_(torch.zeros(5))

    assert target.tolist() == [3.0] * 7, "a refused copy wrote into its target"
