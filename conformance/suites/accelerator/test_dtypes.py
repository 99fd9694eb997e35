"""Data types: storage, copies, casts and computation without loss."""

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
    Mode,
)
from conformance.judging.finding import environment_lacks
from conformance.numerics.compare import without_nan
from conformance.plan.case import Level, case
from conformance.suites.operator_claims import claims

from .patterns import bytes_of, edge_values, every_value, random_bits

FLOATS = [name for name in DTYPES if name in FLOATING_DTYPES]
WITH_BITS = [name for name in DTYPES if name.startswith(("float", "bfloat"))]
WIDE_UNSIGNED = ("uint16", "uint32", "uint64")
LAYOUTS = ("contiguous", "transposed", "strided", "offset", "scalar", "empty")


def dtype_of(name):
    return getattr(torch, name)


def differing_bytes(left, right):
    """Return the number of bytes that differ between two tensors.

    Raise AssertionError if their dtypes or shapes differ.
    """
    assert left.dtype == right.dtype and left.shape == right.shape, (
        f"{left.dtype} {tuple(left.shape)} cannot be compared with {right.dtype} {tuple(right.shape)}"
    )
    # Compare bytes: NaN is not equal to itself, and -0.0 equals 0.0.
    return int((bytes_of(left) != bytes_of(right)).sum())


@case("accelerator.dtype.supported_list", requires=[DEVICE], level=Level.CORE)
def test_supported_list(accelerator):
    """supported_dtypes() returns a list of different dtypes that contains float32."""
    listed = accelerator.supported_dtypes()

    assert type(listed) is list, f"supported_dtypes() returned a {type(listed).__name__}; it must return a list"
    assert all(isinstance(dtype, torch.dtype) for dtype in listed), (
        f"supported_dtypes() returned {listed}; it must contain only torch.dtype objects"
    )
    assert torch.float32 in listed, f"float32 is not in supported_dtypes(): {listed}"
    assert len(set(listed)) == len(listed), f"supported_dtypes() contains a dtype twice: {listed}"


@case(
    "accelerator.dtype.supported_agrees", requires=[DEVICE], level=Level.CORE, axes={"dtype": ["float16", "bfloat16"]}
)
def test_supported_agrees(accelerator, dtype):
    """is_fp16_supported() and is_bf16_supported() return a bool that agrees with supported_dtypes()."""
    method = {"float16": "is_fp16_supported", "bfloat16": "is_bf16_supported"}[dtype]

    answer, listed = getattr(accelerator, method)(), dtype_of(dtype) in accelerator.supported_dtypes()

    assert type(answer) is bool, f"{method}() returned {answer!r}; it must return a bool"
    assert answer is listed, f"{method}() is {answer}, but {dtype} is {'' if listed else 'not '}in supported_dtypes()"


@case("accelerator.dtype.copy", requires=[DTYPE, COPY], axes={"dtype": DTYPES})
def test_copy(check, device, dtype):
    """Random bits, NaN payloads included, survive copies to the device, on it, and back."""
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
        wrong = differing_bytes(check.bits(result), source)
        assert wrong == 0, f"{way}: {wrong} bytes changed"


@case("accelerator.dtype.float32_copy", requires=[COPY], level=Level.CORE)
def test_float32_copy(check, device):
    """Float32 values keep every bit on the way to the device and back, NaN payloads and subnormals included."""
    for source in (random_bits(torch.float32, 65537), edge_values(torch.float32)):
        wrong = differing_bytes(check.bits(source.to(device, copy=True).cpu()), source)
        assert wrong == 0, f"{wrong} bytes changed"


@case("accelerator.dtype.copy_edges", requires=[DTYPE, COPY], axes={"dtype": WITH_BITS})
def test_copy_edges(check, device, dtype):
    """NaN payloads, signed zeros, infinities, extremes and subnormals survive a copy bit for bit."""
    source = edge_values(dtype_of(dtype))

    result = check.bits(source.to(device, copy=True).clone().cpu())

    wrong = (bytes_of(result) != bytes_of(source)).view(len(source), -1).any(dim=1).nonzero().flatten().tolist()
    assert not wrong, f"the values at {wrong} of {source.tolist()} came back changed: {result.tolist()}"


@case("accelerator.dtype.copy_layouts", requires=[COPY], level=Level.CORE, axes={"layout": LAYOUTS})
def test_copy_layouts(check, device, layout):
    """Copies of views keep their values in both directions, and a copy into a view writes nothing else."""
    base = random_bits(torch.float32, 64 * 33).view(64, 33)
    takes = {
        "contiguous": [lambda t: t],
        "transposed": [lambda t: t.t()],
        # Dimensions of size 1 say nothing of how the others lie in memory.
        "strided": [
            lambda t: t[::3, 1::2],
            lambda t: t.view(64, 1, 33)[:, :, :1],
            lambda t: t.view(64, 33, 1)[:, :1],
            lambda t: t.view(1, 64, 33)[:, :, 2:3],
            lambda t: t.view(8, 8, 33)[:, :1, :1],
        ],
        "offset": [lambda t: t[7:, 5:], lambda t: t[7:8, 5:]],
        "scalar": [lambda t: t[3, 4]],
        "empty": [lambda t: t[:0]],
    }[layout]

    there = base.to(device, copy=True)
    for take in takes:
        read, target = take(there).cpu(), torch.zeros(64, 33, device=device)
        take(target).copy_(take(base))
        expected = torch.zeros(64, 33)
        take(expected).copy_(take(base))

        shape = tuple(read.shape)
        assert differing_bytes(check.bits(there.cpu()), base) == 0, "the tensor under the view came back changed"
        wrong = differing_bytes(check.bits(read.contiguous()), take(base).contiguous())
        assert wrong == 0, f"a view of shape {shape} came back changed"
        wrong = differing_bytes(check.bits(target.cpu()), expected)
        assert wrong == 0, f"a copy into a view of shape {shape} wrote other elements"


@case("accelerator.dtype.copy_broadcast", requires=[COPY], level=Level.CORE)
def test_copy_broadcast(device):
    """copy_() broadcasts and casts its source."""
    target = torch.zeros(5, 7, device=device)

    target.copy_(torch.arange(7))

    assert target.cpu().tolist() == [[float(n) for n in range(7)]] * 5, f"broadcast copy gives {target.cpu().tolist()}"


@case("accelerator.dtype.metadata", requires=[DTYPE], axes={"dtype": DTYPES})
def test_metadata(device, dtype):
    """New tensors have the requested dtype, element size and device."""
    tensor = torch.empty(3, 5, dtype=dtype_of(dtype), device=device)
    fresh = (tensor, torch.empty_like(tensor), tensor.new_empty(2), torch.zeros(3, dtype=tensor.dtype, device=device))

    for made in fresh:
        assert made.dtype is dtype_of(dtype) and made.device.type == device.type, f"{made.dtype} on {made.device}"
    assert tensor.element_size() == torch.empty(0, dtype=tensor.dtype).element_size()
    assert tensor.untyped_storage().nbytes() >= 15 * tensor.element_size()
    ones = torch.ones(3).to(tensor.dtype)
    assert differing_bytes(fresh[-1].copy_(ones).cpu(), ones) == 0, f"a new tensor of {dtype} does not hold ones"


@case("accelerator.dtype.cast_from_float32", requires=[DTYPE], axes={"dtype": DTYPES})
def test_cast_from_float32(check, declaration, device, dtype):
    """Casts give the same bits as PyTorch's casts on the host: from float32, and from each other declared dtype."""
    values = torch.cat([torch.linspace(-100.0, 100.0, 4099), torch.tensor([0.0, 1.0, 0.5, 1.5, 2.5, 1 / 3])])
    # C++ leaves casts of negative floats to unsigned integers undefined.
    source = values.abs() if dtype == "uint8" else values

    result = check.bits(source.to(device).to(dtype_of(dtype)).cpu())

    expected = source.to(dtype_of(dtype))
    wrong = differing_bytes(result, expected)
    assert wrong == 0, f"{wrong} bytes of the cast to {dtype} differ from the cast on the host"
    if declaration.supports(DTYPE.on("int64")):
        _check_cast_of_integers(check, device, dtype)
    for narrow in ("float16", "bfloat16"):
        if narrow != dtype and declaration.supports(DTYPE.on(narrow)):
            _check_cast_of_every_value(check, device, narrow, dtype)


def _check_cast_of_every_value(check, device, narrow, dtype):
    """Check the cast of every number of a narrow dtype that the target holds without overflow or subnormal numbers."""
    target, values = dtype_of(dtype), every_value(dtype_of(narrow))
    numbers = values.double()
    if target is torch.bool:
        held = ~numbers.isnan()
    elif target.is_floating_point or target.is_complex:
        limits = torch.finfo(target)
        held = (numbers.abs() <= limits.max) & (numbers.abs() >= limits.smallest_normal)
    else:
        limits = torch.iinfo(target)
        # The largest number of a wide integer is rounded up in float64.
        held = (numbers > limits.min / 2) & (numbers < limits.max / 2)
    # A device may take a subnormal number of the source for zero.
    source = values[(held & (numbers.abs() >= torch.finfo(values.dtype).smallest_normal)) | (numbers == 0)]

    result = check.bits(source.to(device).to(target).cpu())

    expected = source.to(target)
    wrong = differing_bytes(result, expected)
    first = source[(bytes_of(result).view(len(source), -1) != bytes_of(expected).view(len(source), -1)).any(1)][:1]
    assert wrong == 0, f"{wrong} bytes of the cast from {narrow} to {dtype} differ, the first for {first.tolist()}"


def _check_cast_of_integers(check, device, dtype):
    """Check casts from int64: all of its bits count, not the low ones."""
    target = dtype_of(dtype)
    powers = 2 ** torch.arange(63)
    values = torch.cat([torch.arange(-500, 500), 256 * torch.arange(-9, 9), powers - 1, powers, powers + 1, -powers])
    if target.is_floating_point or target.is_complex:
        # Larger numbers may be rounded twice, by way of a wider float, and narrow floats differ in what overflows.
        most = 200 if target.itemsize == 1 else 1 << 24 if target.itemsize == 2 else 1 << 53
        values = values[values.abs() <= most]

    result = check.bits(values.to(device).to(target).cpu())

    wrong = differing_bytes(result, values.to(target))
    assert wrong == 0, f"{wrong} bytes of the cast from int64 to {dtype} differ from the cast on the host"


@case("accelerator.dtype.cast_to_unsigned", requires=[DTYPE.on("float32")], axes={"dtype": WIDE_UNSIGNED})
def test_cast_to_unsigned(check, device, dtype):
    """Casts from float32 to wide unsigned integers cut fractions off, as on the host, if the device has the dtype."""
    source = torch.cat([torch.linspace(0.0, 60000.0, 4099), torch.arange(0.0, 40.0, 0.25)])
    try:
        result = source.to(device).to(dtype_of(dtype)).cpu()
    except (RuntimeError, TypeError) as error:
        # No claim covers these dtypes: a refusal is right, and silence is not.
        assert str(error), f"a cast to {dtype} is refused without a word"
        return

    expected = source.to(dtype_of(dtype))
    wrong = differing_bytes(check.bits(result), expected)
    assert wrong == 0, f"{wrong} bytes of the cast to {dtype} differ from the cast on the host"


@case("accelerator.dtype.cast_to_float32", requires=[DTYPE], axes={"dtype": DTYPES})
def test_cast_to_float32(check, device, dtype):
    """Casts to float32 are exact: every value of the narrow dtypes, and integers in the wide dtypes."""
    narrow = dtype_of(dtype)
    if narrow.is_complex:
        source = torch.arange(-500, 500).to(narrow).real
    elif torch.empty(0, dtype=narrow).element_size() <= 2 and narrow is not torch.bool:
        source = every_value(narrow)
    else:
        source = torch.arange(-500, 500).to(narrow)

    result = check.result(source.to(device).to(torch.float32))

    expected = source.to(torch.float32)
    # A cast may choose the bits of a NaN, so only numbers are compared bit for bit.
    number = ~expected.isnan()
    assert torch.equal(result.isnan(), expected.isnan()), "the cast turned a NaN into a number, or a number into a NaN"
    wrong = int((bytes_of(result[number].contiguous()) != bytes_of(expected[number].contiguous())).sum())
    assert wrong == 0, f"{wrong} bytes of the cast to float32 differ"


@case("accelerator.dtype.cast_special", requires=[DTYPE], axes={"dtype": FLOATS})
def test_cast_special(device, dtype):
    """Casts keep infinities, NaN and the sign of zero, and overflow to infinity."""
    source = torch.tensor([math.inf, -math.inf, math.nan, 0.0, -0.0, 3e38, -3e38])

    result = source.to(device).to(dtype_of(dtype)).to(torch.float64 if dtype == "float64" else torch.float32).cpu()

    expected = source.to(dtype_of(dtype)).to(result.dtype)
    assert result.isnan().tolist() == expected.isnan().tolist(), f"NaN is lost: {result.tolist()}"
    same = torch.equal(without_nan(result, 0.0), without_nan(expected, 0.0))
    assert same, f"{result.tolist()}, not {expected.tolist()}"
    # Only zeros and large numbers: the sign of a NaN has no meaning, and infinities are compared above.
    assert torch.equal(result.signbit()[3:], expected.signbit()[3:]), f"a sign is lost: {result.tolist()}"


@case("accelerator.dtype.compute", requires=[DTYPE], axes={"dtype": FLOATS})
def test_compute(accelerator, device, dtype):
    """Products, sums, relu and their gradients are exact for small integers."""
    left = (torch.arange(35) % 7 - 3).view(5, 7).to(dtype_of(dtype)).to(device).requires_grad_()
    right = (torch.arange(21) % 5 - 2).view(7, 3).to(dtype_of(dtype)).to(device).requires_grad_()

    result = torch.relu(left @ right + 1) * 2
    result.sum().backward()

    on_host = [tensor.detach().cpu().double().requires_grad_() for tensor in (left, right)]
    expected = torch.relu(on_host[0] @ on_host[1] + 1) * 2
    expected.sum().backward()
    for name, found, exact in (
        ("result", result.detach(), expected.detach()),
        ("gradient of the left factor", left.grad, on_host[0].grad),
        ("gradient of the right factor", right.grad, on_host[1].grad),
    ):
        assert found.dtype is dtype_of(dtype), f"the {name} is {found.dtype}"
        wrong = int((found.cpu().double() != exact).sum())
        assert wrong == 0, f"{wrong} of {found.numel()} elements of the {name} are wrong"


@case("accelerator.dtype.item", requires=[DTYPE], axes={"dtype": FLOATS})
def test_item(device, dtype):
    """item(), tolist() and float() return the value with its fraction and its sign."""
    source = torch.tensor([2.75, -2.75, 0.1, -0.0, 1e-4, 60000.0], dtype=dtype_of(dtype))

    there = source.to(device)
    ways = {
        "item()": [element.item() for element in there],
        # PyTorch has no tolist() for a subclass of Tensor.
        "tolist()": there.tolist() if type(there) is torch.Tensor else there.cpu().tolist(),
        "float()": [float(element) for element in there],
    }

    for way, found in ways.items():
        # As text, because -0.0 == 0.0.
        assert [str(value) for value in found] == [str(value) for value in source.tolist()], f"{way} gives {found}"


#: Functions of a factor of 2 by the operator that a device has to claim: the value of each element, and its gradient.
_COMPUTATIONS = {
    "matmul": (torch.matmul, 36.0, 36.0),
    "mul": (torch.mul, 4.0, 4.0),
    "add": (torch.add, 4.0, 2.0),
}


@case("accelerator.dtype.listed_compute", requires=[DEVICE], level=Level.CORE)
def test_listed_compute(accelerator, declaration, device):
    """Every dtype in supported_dtypes() computes a claimed product or sum, and its gradient."""
    for dtype in accelerator.supported_dtypes():
        name = str(dtype).removeprefix("torch.")
        for operator, (function, value, gradient) in _COMPUTATIONS.items():
            claimed = [claims(declaration, operator, name, mode) for mode in Mode]
            if not any(claimed):
                continue
            factor = torch.full((9, 9), 2.0, dtype=dtype).to(device).requires_grad_(all(claimed))
            result = function(factor, factor)
            found = result.detach().cpu()
            assert found.dtype is dtype, f"{operator} in {dtype} gives {found.dtype}"
            assert bool((found == value).all()), (
                f"{dtype} is in supported_dtypes(), but {operator} gives {found[0, 0].item()}, not {value}"
            )
            if all(claimed):
                result.backward(torch.ones(9, 9, dtype=dtype).to(device))
                found = factor.grad.cpu()
                assert found.dtype is dtype, f"the gradient of {dtype} is {found.dtype}"
                assert bool((found == gradient).all()), (
                    f"{dtype} is in supported_dtypes(), but its gradient is {found[0, 0].item()}, not {gradient}"
                )
            break
        else:
            held = torch.full((9, 9), 2.0, dtype=dtype).to(device).cpu()
            assert bool((held == 2).all()), f"{dtype} is in supported_dtypes(), but holds {held[0, 0].item()}, not 2"


@case("accelerator.dtype.float64_flag", requires=[DEVICE])
def test_float64_flag(accelerator, device):
    """is_fp64_supported() returns a bool, and True means that float64 keeps float64 precision."""
    answer = accelerator.is_fp64_supported()
    assert type(answer) is bool, f"is_fp64_supported() returned {answer!r}; it must return a bool"
    if not answer:
        return

    third = torch.full((17,), 1.0, dtype=torch.float64, device=device) / 3

    # float64 has an epsilon of 2.2e-16; float32 would miss by about 1e-8.
    assert (third * 3 - 1).cpu().abs().max().item() < 1e-15, (
        "is_fp64_supported() is True, but quotients have less than float64 precision"
    )
    assert third.cpu()[0].item() == 1 / 3, f"1/3 is {third.cpu()[0].item()!r}"


@case("accelerator.dtype.no_silent_change", requires=[DEVICE])
def test_no_silent_change(device):
    """Creating a tensor of a dtype that the device lacks raises; no other dtype replaces it."""
    created = 0
    for name in DTYPES:
        for number, make in enumerate((torch.zeros, torch.ones)):
            try:
                tensor = make(3, dtype=dtype_of(name), device=device)
            # Raising is right for a dtype that the device lacks.
            except Exception:
                continue
            created += 1
            assert tensor.dtype is dtype_of(name), f"{make.__name__}: asked for {name}, got {tensor.dtype}"
            wrong = differing_bytes(tensor.cpu(), torch.tensor([number] * 3).to(tensor.dtype))
            assert wrong == 0, f"{wrong} bytes of {make.__name__}(3) in {name} are wrong"
    if not created:
        environment_lacks("no tensor of any dtype can be created on this machine")


@case("accelerator.dtype.wrong_size_raises", requires=[COPY], level=Level.CORE)
def test_wrong_size_raises(device):
    """A copy between shapes that do not fit raises and writes nothing."""
    target = torch.full((7,), 3.0, device=device)

    with pytest.raises(RuntimeError):
        target.copy_(torch.zeros(5)).cpu()  # a device that queues its work refuses when it is waited for

    assert target.cpu().tolist() == [3.0] * 7, "a refused copy wrote into its target"
