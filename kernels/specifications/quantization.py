"""Quantization to 4 and 8 bits and back: integer codes in bytes, with float32 parameters for each group.

Sources: DeepSpeed's csrc/quantization, as ZeRO++ uses it (Wang et al., 2023, arXiv:2306.10209), and the weight-only
quantization of its inference engine. Implementations in use disagree on some points. This specification decides:

- Input of any floating-point dtype is converted to float32, which is exact for 16-bit dtypes. The CUDA kernel in use
  reads the bytes of every input as float16.
- A module chooses which half of a byte holds the first of two 4-bit numbers. It has to dequantize what it quantizes;
  only this round trip is judged. In this implementation the high half holds the first number.
- Offsets are added in float32. In float16 a large offset would lose the precision of a small step.
- A group of equal numbers, zeros for example, has step 1. A group with NaN or infinity has non-finite parameters, so
  that the whole group dequantizes to NaN.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from conformance.accelerators.capabilities import Mode
from conformance.kernels.arguments import check_tensor, wrong
from conformance.kernels.native import WHAT
from conformance.kernels.quantization import compiled, exact
from conformance.kernels.quantization.checks import (
    FLOATS,
    check_groups,
    check_positive,
    check_stored,
    check_type,
)
from conformance.kernels.quantization.groups import (
    QuantizationType,
    decoded,
    grouped,
    loaded,
    quantized,
    stored,
)
from conformance.kernels.specification import (
    Arguments,
    ErrorBudget,
    Expected,
    KernelSample,
    KernelSpecification,
    Native,
    Property,
    Refusal,
)
from conformance.kernels.triton.offering import triton_kernel

BUDGET = ErrorBudget(
    rounding=1.0,
    conditioning=4.0,
    source="a step and an offset are a difference or sum and one product, a value a product and a sum, each within u "
    "of its terms in float32 (Higham, 2nd ed., 3.1), rounded once to the result's dtype",
)
#: Allowed error of bytes that are not compared, because the module chooses the order of their halves.
_ANY_BYTE = 255.0


# --- semantics ------------------------------------------------------------------------------------------------------


def quantize(vals: Tensor, groups: int, num_bits: int, quant_type: int) -> list[Tensor]:
    """Quantize ``groups`` equal consecutive parts of ``vals``. Returns [data, params].

    data is int8 with the shape of ``vals``; for 4 bits the last dimension is halved. params is float32: the step,
    (groups, 1), for ``quant_type`` 0 (symmetric); step and offset, (groups, 2), for 1 (asymmetric). With b bits the
    symmetric step is 2 * largest magnitude / 2^b and the offset 0. The asymmetric step is (max - min) / 2^b and the
    offset (max + min) / 2. A code is (x - offset) / step, rounded to the nearest integer, ties to even, and clamped to
    [-2^(b-1), 2^(b-1) - 1].
    """
    result = quantized(grouped(vals, groups), num_bits, quant_type)
    shape = (*vals.shape[:-1], vals.shape[-1] * num_bits // 8)
    return [stored(result.codes, num_bits).reshape(shape), result.params]


def dequantize(data: Tensor, params: Tensor, groups: int, num_bits: int, quant_type: int) -> Tensor:
    """Return the values of ``quantize``'s codes as float16: code * step + offset in float32, rounded once."""
    return dequantize_fp32(data, params, groups, num_bits, quant_type).half()


def dequantize_fp32(data: Tensor, params: Tensor, groups: int, num_bits: int, quant_type: int) -> Tensor:
    """Return the values of ``quantize``'s codes as float32: code * step + offset.

    For 4 bits the last dimension is doubled.
    """
    values = decoded(loaded(data.view(torch.int8), num_bits, groups), params.view(groups, -1))
    return values.reshape(*data.shape[:-1], data.shape[-1] * 8 // num_bits)


def dequantize_int4_to_half_experimental(
    data_in: Tensor, scale_buffer: Tensor, min_val_buffer: Tensor, num_group: int, group_size: int
) -> Tensor:
    """Dequantize 4-bit weights as ``dequantize_int8_to_half_experimental`` does: float16, (num_group, group_size).

    A byte holds two weights, the first in the high half. The order is fixed: DeepSpeed's Python code packs the bytes.
    """
    pairs = data_in.view(torch.uint8)
    numbers = torch.stack([pairs >> 4, pairs & 15], dim=-1)
    return _weights(numbers, scale_buffer, min_val_buffer, num_group, group_size)


def dequantize_int8_to_half_experimental(
    data_in: Tensor, scale_buffer: Tensor, min_val_buffer: Tensor, num_group: int, group_size: int
) -> Tensor:
    """Dequantize 8-bit weights: q / scale + min of each group, float16 of shape (num_group, group_size).

    q are unsigned bytes. ``scale_buffer`` holds (2^b - 1) / (max - min) for each group, as DeepSpeed's weight quantizer
    computes it: codes are divided by it, not multiplied.
    """
    return _weights(data_in.view(torch.uint8), scale_buffer, min_val_buffer, num_group, group_size)


def _weights(numbers: Tensor, scale: Tensor, least: Tensor, num_group: int, group_size: int) -> Tensor:
    values = numbers.reshape(num_group, group_size).float() / scale.reshape(-1, 1).float()
    return torch.add(values, least.reshape(-1, 1).float()).half()


# --- oracles, in float64 on the host ----------------------------------------------------------------------------------


def quantize_oracle(given: Arguments) -> Mapping[str, Expected]:
    """Return codes and parameters. Codes are compared for 8 bits only, with both neighbours of a tie accepted."""
    vals, groups, num_bits = given["vals"], given["groups"], given["num_bits"]
    expected = exact.quantize(exact.rows(vals, groups), num_bits, bool(given["quant_type"]))
    shape = (*vals.shape[:-1], vals.shape[-1] * num_bits // 8)
    # For 4 bits one number stands for each byte, whose value is not compared.
    codes, slack = (tensor.reshape(-1)[:: 8 // num_bits].reshape(shape) for tensor in (expected.codes, expected.slack))
    allowed = slack if num_bits == 8 else torch.full(shape, _ANY_BYTE).double()
    numbers = exact.rows(vals, groups)
    magnitude = numbers.abs().max(1, keepdim=True).values
    params = [expected.step] if not given["quant_type"] else [expected.step, expected.offset]
    scales = [expected.step + magnitude * 2.0 ** (1 - num_bits), magnitude][: len(params)]
    return {
        "result[0]": Expected(codes, allowed=allowed, dtype=torch.int8),
        "result[1]": Expected(torch.cat(params, 1), torch.cat(scales, 1), dtype=torch.float32),
    }


def dequantize_oracle(given: Arguments, *, dtype: torch.dtype) -> Mapping[str, Expected]:
    """Return code * step + offset.

    In 4-bit samples both halves of a byte hold the same number, so their order does not matter.
    """
    data, groups = given["data"], given["groups"]
    if given["num_bits"] == 4:
        # floor keeps the sign of the high half, as an arithmetic shift does.
        high = torch.div(data.double(), 16, rounding_mode="floor")
        codes = high.repeat_interleave(2, dim=-1)
    else:
        codes = data.double()
    table = given["params"].double().view(groups, -1)
    products = codes.reshape(groups, -1) * table[:, :1]
    offset = table[:, 1:] if given["quant_type"] else torch.zeros(groups, 1).double()
    value, scale = (products + offset).view(codes.shape), (products.abs() + offset.abs()).view(codes.shape)
    return {"result": Expected(value, scale, dtype=dtype)}


def weights_oracle(given: Arguments, *, num_bits: int) -> Mapping[str, Expected]:
    """Return q / scale + min; two numbers of one byte are separated by divmod with 16."""
    numbers = given["data_in"].double().reshape(given["num_group"], -1)
    if num_bits == 4:
        high = torch.div(numbers, 16, rounding_mode="floor")
        numbers = torch.stack([high, numbers - 16 * high], dim=2).flatten(1)
    steps = numbers / given["scale_buffer"].double().view(-1, 1)
    least = given["min_val_buffer"].double().view(-1, 1)
    return {"result": Expected(steps + least, steps.abs() + least.abs(), dtype=torch.float16)}


# --- samples ----------------------------------------------------------------------------------------------------------


def _numbers(
    generator: torch.Generator,
    dtype: torch.dtype,
    *,
    shape: tuple[int, ...],
    groups: int,
    num_bits: int,
    quant_type: int,
    change: Callable[[Tensor], Tensor] = lambda rows: rows,
) -> Arguments:
    values = torch.randn(shape, generator=generator, dtype=torch.float64)
    changed = change(values.view(groups, -1)).view(shape)
    return {"vals": changed.to(dtype), "groups": groups, "num_bits": num_bits, "quant_type": quant_type}


def _ties(rows: Tensor) -> Tensor:
    """Return rows whose step is 2^-5 for 8 bits, with numbers halfway between two codes."""
    halves = torch.arange(rows.shape[1]).double() - rows.shape[1] // 2 + 0.5
    return torch.cat([torch.full((len(rows), 1), 4.0).double(), halves[1:].expand(len(rows), -1) / 32], dim=1)


def _flat_groups(rows: Tensor) -> Tensor:
    """Make the first rows zeros, equal numbers, and negative numbers only."""
    rows[0], rows[1], rows[2] = 0.0, -1.5, -rows[2].abs() - 0.25
    return rows


def _sample(name: str, **settings: Any) -> KernelSample:
    return KernelSample(name, functools.partial(_numbers, **settings))


QUANTIZE_SAMPLES = (
    _sample("sym8", shape=(3, 67), groups=3, num_bits=8, quant_type=0),
    _sample("asym8", shape=(3, 67), groups=3, num_bits=8, quant_type=1),
    _sample("sym4", shape=(2, 5, 26), groups=5, num_bits=4, quant_type=0),
    _sample("asym4", shape=(2, 5, 26), groups=5, num_bits=4, quant_type=1),
    _sample("ties-sym8", shape=(2, 97), groups=2, num_bits=8, quant_type=0, change=_ties),
    _sample("flat-sym8", shape=(4, 33), groups=4, num_bits=8, quant_type=0, change=_flat_groups),
    _sample("flat-asym8", shape=(4, 33), groups=4, num_bits=8, quant_type=1, change=_flat_groups),
    _sample("offset-asym8", shape=(2, 513), groups=1, num_bits=8, quant_type=1, change=lambda rows: rows + 1000),
    _sample("singles-sym8", shape=(9,), groups=9, num_bits=8, quant_type=0),
)


def _codes(
    generator: torch.Generator,
    dtype: torch.dtype,
    *,
    shape: tuple[int, ...],
    groups: int,
    num_bits: int,
    quant_type: int,
) -> Arguments:
    """Return random codes and parameters to dequantize. ``shape`` counts the bytes."""
    low, high = (-128, 128) if num_bits == 8 else (-8, 8)
    numbers = torch.randint(low, high, shape, generator=generator)
    # For 4 bits, times 17 writes the number into both halves of the byte.
    data = numbers if num_bits == 8 else (numbers & 15) * 17
    step = torch.rand(groups, 1, generator=generator) / 64 + 2.0**-9
    offset = 1000.0 * torch.randn(groups, 1, generator=generator)
    params = torch.cat([step, offset], 1) if quant_type else step
    data = torch.where(data > 127, data - 256, data).to(torch.int8)
    return {"data": data, "params": params, "groups": groups, "num_bits": num_bits, "quant_type": quant_type}


_STORED: Mapping[str, Mapping[str, Any]] = {
    "sym8": {"shape": (3, 67), "groups": 3, "num_bits": 8, "quant_type": 0},
    "asym8": {"shape": (5, 67), "groups": 5, "num_bits": 8, "quant_type": 1},
    "sym4": {"shape": (2, 5, 13), "groups": 10, "num_bits": 4, "quant_type": 0},
    "asym4": {"shape": (2, 5, 13), "groups": 2, "num_bits": 4, "quant_type": 1},
}
DEQUANTIZE_SAMPLES = tuple(
    KernelSample(name, functools.partial(_codes, **settings)) for name, settings in _STORED.items()
)


def _weight_bytes(
    generator: torch.Generator, dtype: torch.dtype, *, groups: int, size: int, num_bits: int
) -> Arguments:
    """Return random weight bytes, with scale and minimum for each group."""
    data = torch.randint(0, 256, (groups, size * num_bits // 8), generator=generator, dtype=torch.uint8)
    width = torch.rand(groups, 1, generator=generator) + 0.5
    scale, least = (2**num_bits - 1) / width, -width * torch.rand(groups, 1, generator=generator)
    return {
        "data_in": data, "scale_buffer": scale.to(dtype), "min_val_buffer": least.to(dtype),
        "num_group": groups, "group_size": size,
    }  # fmt: skip


def _weight_samples(num_bits: int) -> tuple[KernelSample, ...]:
    """Return samples of several numbers of groups and group sizes."""
    sizes = {"3x64": (3, 64), "1x8": (1, 8), "33x24": (33, 24)}
    return tuple(
        KernelSample(name, functools.partial(_weight_bytes, groups=groups, size=size, num_bits=num_bits))
        for name, (groups, size) in sizes.items()
    )


# --- properties -------------------------------------------------------------------------------------------------------

#: Observations of a property: description, tensor, expected result.
Observations = Iterable[tuple[str, Tensor, Expected]]


def kind_of(functions: Any, quant_type: int) -> Any:
    """Return the module's own constant for a quantization type.

    DeepSpeed's code passes that constant; compiled modules accept no plain number.
    """
    name = QuantizationType(quant_type).name
    holder = functions if hasattr(functions, name) else getattr(functions, "QuantizationType", QuantizationType)
    return getattr(holder, name)


@contextmanager
def their_constants(functions: Any, given: Arguments) -> Iterator[None]:
    """Replace ``quant_type`` by the module's own constant for one call. Invalid types stay as they are."""
    if given["quant_type"] in (0, 1):
        given["quant_type"] = kind_of(functions, given["quant_type"])
    yield


def _round_trip(functions: Any, device: torch.device, dtype: torch.dtype, generator: torch.Generator) -> Observations:
    """Check that every number comes back as its code's value, at its own position.

    With 4 bits, two different neighbours share a byte, so that swapped halves are detected.
    """
    vals = torch.randn(4, 6, 22, generator=generator).to(dtype)
    for num_bits in (8, 4):
        for quant_type in (0, 1):
            what = f"{num_bits} bits, {QuantizationType(quant_type).name}"
            kind = kind_of(functions, quant_type)
            data, params = functions.quantize(vals.to(device), 12, num_bits, kind)
            back = functions.dequantize_fp32(data, params, 12, num_bits, kind)
            expected = exact.quantize(exact.rows(vals, 12), num_bits, bool(quant_type))
            rounding = BUDGET.conditioning * 2.0**-23 * (expected.scale + expected.step * 128)
            allowed = expected.slack * expected.step + rounding
            yield what, back, Expected(expected.values.view(vals.shape), allowed=allowed.view(vals.shape))
            half = functions.dequantize(data, params, 12, num_bits, kind)
            yield f"{what}, as float16", half, _same(back.detach().cpu().half())


def _non_finite(functions: Any, device: torch.device, dtype: torch.dtype, generator: torch.Generator) -> Observations:
    """Check that one NaN or infinity makes its whole group NaN, and no other group."""
    vals = torch.randn(4, 34, generator=generator).to(dtype)
    vals[0, 3], vals[1, 0], vals[3, 33] = float("nan"), float("inf"), -float("inf")
    for quant_type in (0, 1):
        kind = kind_of(functions, quant_type)
        data, params = functions.quantize(vals.to(device), 4, 8, kind)
        back = functions.dequantize_fp32(data, params, 4, 8, kind).detach().cpu()
        expected = torch.tensor([True, True, False, True])[:, None].expand(4, 34).double()
        yield QuantizationType(quant_type).name, back.isnan().double(), Expected(expected)


def _same(tensor: Tensor) -> Expected:
    return Expected(tensor.double(), allowed=torch.zeros(tensor.shape).double(), dtype=tensor.dtype)


# --- bad arguments ----------------------------------------------------------------------------------------------------


def _check_numbers(given: Arguments) -> None:
    """Raise ``UsageError`` for numbers that do not fill the groups or whole bytes."""
    vals = check_tensor("vals", given["vals"], dtypes=FLOATS)
    check_type(given)
    check_positive(given, "groups")
    check_groups("vals", vals, given["groups"], given["num_bits"])
    if vals.shape[-1] * given["num_bits"] % 8:
        raise wrong("vals", "an even last dimension for 4 bits", vals.shape[-1])


def _check_weights(given: Arguments, *, num_bits: int) -> None:
    """Raise ``UsageError`` for weight bytes or parameters that do not fit the groups."""
    data = check_tensor("data_in", given["data_in"], dtypes=(torch.uint8, torch.int8))
    check_positive(given, "num_group", "group_size")
    numbers = given["num_group"] * given["group_size"]
    if data.numel() * 8 != numbers * num_bits:
        raise wrong("data_in", f"{numbers} numbers of {num_bits} bits", f"{data.numel()} bytes")
    for name in ("scale_buffer", "min_val_buffer"):
        buffer = check_tensor(name, given[name], dtypes=(torch.float16,), device=data.device)
        if buffer.numel() != given["num_group"]:
            raise wrong(name, f"{given['num_group']} elements", buffer.numel())


def altered(name: str, value: Any) -> Callable[[Arguments], Arguments]:
    """Return a function that replaces one argument by ``value``, or by ``value(argument)`` if it is callable."""
    return lambda given: {**given, name: value(given[name]) if callable(value) else value}


QUANTIZE_REFUSALS = (
    Refusal("groups", "vals", altered("groups", 2)),
    Refusal("bits", "num_bits", altered("num_bits", 3)),
    Refusal("bytes-across-groups", "vals", altered("num_bits", 4)),
    Refusal("dtypes", "vals", altered("vals", lambda tensor: tensor.to(torch.int32))),
    Refusal("strides", "vals", altered("vals", lambda tensor: tensor.t())),
)
DEQUANTIZE_REFUSALS = (
    Refusal("groups", "data", altered("groups", 2)),
    Refusal("params", "params", altered("params", lambda tensor: tensor[:-1].clone())),
    Refusal("params-dtype", "params", altered("params", lambda tensor: tensor.half())),
    Refusal("dtypes", "data", altered("data", lambda tensor: tensor.float())),
)
WEIGHT_REFUSALS = (
    Refusal("sizes", "data_in", altered("group_size", 32)),
    Refusal("scales", "scale_buffer", altered("scale_buffer", lambda tensor: tensor[:-1].clone())),
    Refusal("dtypes", "min_val_buffer", altered("min_val_buffer", lambda tensor: tensor.float())),
)


def _compiled_quantize() -> Callable[..., list[Tensor]]:
    # Build the library now, so that a missing compiler is an error of loading and not of the first call.
    compiled.library()
    return compiled.quantize


def _compiled_dequantize(dtype: torch.dtype) -> Callable[..., Tensor]:
    compiled.library()
    return compiled.dequantizer(dtype)


def _dequantizer(reference: Callable[..., Tensor], dtype: str) -> KernelSpecification:
    """Return the specification of a function that dequantizes to ``dtype``."""
    return KernelSpecification(
        name=reference.__name__,
        builder="QuantizerBuilder",
        mode=Mode.INFERENCE,
        dtypes=(dtype,),
        samples=DEQUANTIZE_SAMPLES,
        oracle=functools.partial(dequantize_oracle, dtype=getattr(torch, dtype)),
        budget=BUDGET,
        reference=reference,
        validate=check_stored,
        refusals=DEQUANTIZE_REFUSALS,
        native=(
            triton_kernel("quantizer", reference.__name__),
            Native(functools.partial(_compiled_dequantize, getattr(torch, dtype)), WHAT),
        ),
        session=their_constants,
    )


def _weight_dequantizer(reference: Callable[..., Tensor], num_bits: int) -> KernelSpecification:
    """Return the specification of a function that dequantizes weights to float16."""
    return KernelSpecification(
        name=reference.__name__,
        builder="QuantizerBuilder",
        mode=Mode.INFERENCE,
        dtypes=("float16",),
        samples=_weight_samples(num_bits),
        oracle=functools.partial(weights_oracle, num_bits=num_bits),
        budget=ErrorBudget(
            rounding=1.0,
            conditioning=1.5 * 2.0**13,
            source="quotient and sum may each be rounded to float16 (u is 2^13 times float32's), as DeepSpeed's kernel "
            "and its own fallback do; a byte is exact in float16",
        ),
        reference=reference,
        validate=functools.partial(_check_weights, num_bits=num_bits),
        refusals=WEIGHT_REFUSALS,
    )


SPECIFICATIONS = (
    KernelSpecification(
        name="quantize",
        builder="QuantizerBuilder",
        mode=Mode.INFERENCE,
        dtypes=("float32", "float16", "bfloat16"),
        samples=QUANTIZE_SAMPLES,
        oracle=quantize_oracle,
        budget=BUDGET,
        reference=quantize,
        validate=_check_numbers,
        refusals=QUANTIZE_REFUSALS,
        properties=(Property("round-trip", _round_trip), Property("non-finite", _non_finite)),
        native=(
            triton_kernel("quantizer", "quantize", ("float32", "float16", "bfloat16")),
            Native(_compiled_quantize, WHAT),
        ),
        companions={"QuantizationType": QuantizationType, **QuantizationType.__members__},
        session=their_constants,
    ),
    _dequantizer(dequantize, "float16"),
    _dequantizer(dequantize_fp32, "float32"),
    _weight_dequantizer(dequantize_int4_to_half_experimental, 4),
    _weight_dequantizer(dequantize_int8_to_half_experimental, 8),
)
