"""Quantization to floating-point numbers of 4, 6, 8 and 12 bits, with a scale in the last four bytes of every group.

Source: DeepSpeed's FP quantizer (csrc/fp_quantizer and its Triton kernel), which its quantized linear layers use. The
formats follow the Open Compute Project's MX specification 1.0 where it defines them. The codes for infinity and NaN
hold one more exponent instead, so that the largest numbers are 6, 28, 480 and 114688. Implementations in use disagree
on some points. This specification decides:

- Zero is zero, and small numbers are subnormal. The CUDA kernel in use has no code for zero: zeros come back as a small
  number. It rounds small numbers up to the smallest normal number.
- A group of zeros has scale 0 and comes back as zeros. A group with NaN or infinity comes back as NaN.
- Stochastic rounding rounds up with the probability of the fraction. The kernel in use adds bits that are not uniform.
- A module chooses how codes of 4, 6 and 12 bits share bytes; only the round trip through one module is judged. In this
  implementation codes follow each other, lowest bits first. An 8-bit code is one byte: sign, exponent, mantissa from
  the highest bit.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from conformance.accelerators.capabilities import Mode
from conformance.kernels.arguments import check_choice, check_tensor, wrong
from conformance.kernels.quantization.checks import FLOATS, check_positive
from conformance.kernels.quantization.floats import FORMATS, Format, decoded, encoded, from_bytes, to_bytes
from conformance.kernels.quantization.groups import NEGLIGIBLE
from conformance.kernels.specification import (
    Arguments,
    ErrorBudget,
    Expected,
    KernelSample,
    KernelSpecification,
    Property,
    Refusal,
)
from conformance.kernels.specifications.fake_quantization import SIGMAS
from conformance.kernels.specifications.quantization import Observations, altered

#: A float32 behind the codes of each group.
_SCALE_BYTES = 4
BUDGET = ErrorBudget(
    rounding=1.0,
    conditioning=4.0,
    source="a scale is one division, a value one product in float32, rounded once to the result's dtype",
)


# --- semantics ------------------------------------------------------------------------------------------------------


def quantize(
    out: Tensor, val: Tensor, group_size: int, stochastic_rounding: int, q_bits: int, q_mantisa_bits: int
) -> Tensor:
    """Write the codes of ``val`` and the scales of its groups into ``out``, and return ``out``.

    ``out`` is uint8 of shape (groups, group_size * q_bits / 8 + 4): a group's codes, then its scale as float32. The
    scale is the group's largest magnitude divided by the largest number of the format. That number is 6 for 4 bits, 28
    for 6 bits, 480 for 8 bits with 3 bits of mantissa, 114688 for 8 bits with 2, and 510 for 12 bits. A code is the
    number of the format nearest to x / scale, ties to even. With ``stochastic_rounding`` it is one of the two
    neighbours, the upper one with the probability of the fraction. Arithmetic is in float32.
    """
    kind = format_of(q_bits, q_mantisa_bits)
    rows = val.detach().reshape(-1, group_size).float()
    largest = rows.abs().amax(dim=1, keepdim=True)
    scale = torch.where(largest < NEGLIGIBLE, 0.0, largest / kind.reach)
    # NaN has no code. A non-finite scale makes the whole group NaN when it is dequantized.
    numbers = torch.where(scale == 0, 0.0, rows / scale).nan_to_num(nan=0.0)
    codes = to_bytes(encoded(numbers, kind, bool(stochastic_rounding)), q_bits)
    out.copy_(torch.cat([codes, scale.contiguous().view(torch.uint8).view(-1, _SCALE_BYTES)], dim=1).view(out.shape))
    return out


def dequantize(val: Tensor, val_q: Tensor, group_size: int, q_mantisa_bits: int, q_exponent_bits: int) -> None:
    """Write the values of ``quantize``'s codes into ``val``: code * scale in float32, rounded once to its dtype."""
    val.copy_(_values(val_q, group_size, q_mantisa_bits, q_exponent_bits).view(val.shape))


def selective_dequantize(
    val: Tensor, val_q: Tensor, indexes: Tensor, group_size: int, q_mantisa_bits: int, q_exponent_bits: int
) -> None:
    """Write the values of selected rows into ``val``: val[i] gets row indexes[i] of ``quantize``'s output.

    ``indexes`` is int32. Indexes may repeat and may be in any order. A row of ``val`` is a whole number of groups.
    """
    groups = val[0].numel() // group_size
    chosen = val_q.view(-1, groups, val_q.shape[-1])[indexes.long()].reshape(-1, val_q.shape[-1])
    val.copy_(_values(chosen, group_size, q_mantisa_bits, q_exponent_bits).view(val.shape))


def get_scales(out: Tensor, num_groups: int) -> Tensor:
    """Return the scales in the last four bytes of every row of ``out``: float32 of shape (num_groups, 1).

    Callers pass the output of ``quantize``, or only its last four columns. The kernel in use reads the first four bytes
    of a row, which is right in the second case only.
    """
    rows = out.view(num_groups, -1)[:, -_SCALE_BYTES:]
    # Four bytes become one float32 in contiguous memory only.
    return rows.contiguous().view(-1).view(torch.float32).view(num_groups, 1)


def _values(data: Tensor, group_size: int, mantissa: int, exponent: int) -> Tensor:
    kind = format_of(1 + exponent + mantissa, mantissa)
    rows = data.view(-1, group_size * kind.bits // 8 + _SCALE_BYTES)
    return decoded(from_bytes(rows[:, :-_SCALE_BYTES], kind.bits), kind) * get_scales(rows, len(rows))


def format_of(bits: int, mantissa: int) -> Format:
    """Return the format with that number of bits in all and in the mantissa."""
    return next(kind for kind in FORMATS if (kind.bits, kind.mantissa) == (bits, mantissa))


# --- oracles, in float64 on the host ----------------------------------------------------------------------------------


def nearest(numbers: Tensor, kind: Format) -> tuple[Tensor, Tensor]:
    """Return the nearest numbers of the format, and the distances between the two neighbours of each number.

    ``numbers`` is float64. All numbers of the format are listed and searched.
    """
    positive = torch.tensor(sorted({_number(code, kind) for code in range(2 ** (kind.bits - 1))})).double()
    # Clamped, so that 0 and numbers beyond the largest have a neighbour on both sides.
    index = torch.searchsorted(positive, numbers.abs().contiguous()).clamp(1, len(positive) - 1)
    below, above = positive[index - 1], positive[index]
    up = numbers.abs() - below > above - numbers.abs()
    # Ties go to the even code. The list is sorted, so a number's index is its code.
    tied = numbers.abs() - below == above - numbers.abs()
    up = torch.where(tied, index % 2 == 0, up)
    return torch.where(up, above, below).copysign(numbers), above - below


def _number(code: int, kind: Format) -> float:
    exponent, mantissa = divmod(code, 2**kind.mantissa)
    fraction = mantissa / 2**kind.mantissa
    return math.ldexp(fraction, 1 - kind.bias) if exponent == 0 else math.ldexp(1 + fraction, exponent - kind.bias)


def round_trip(rows: Tensor, kind: Format, dtype: torch.dtype) -> Expected:
    """Return the expected result of quantize and dequantize. Near a tie, as float32 sees it, both neighbours pass."""
    numbers = rows.double()
    scale = numbers.abs().max(1, keepdim=True).values / kind.reach
    exact = torch.where(scale == 0, 0.0, numbers / scale)
    found, apart = nearest(exact, kind)
    moved = 4 * 2.0**-24 * exact.abs()
    # At a tie the distance to either neighbour is half of their distance from each other.
    slack = torch.where((exact - found).abs() >= apart / 2 - moved, apart, 0.0)
    value = found * scale
    u = torch.finfo(dtype).eps / 2
    allowed = slack * scale + (u + 4 * 2.0**-24) * (value.abs() + slack * scale) + torch.finfo(dtype).tiny * u * 4
    return Expected(value, allowed=allowed)


def _quantize_oracle(given: Arguments) -> Mapping[str, Expected]:
    """Return the bytes of the scales. Codes are not compared here; the properties judge them.

    Samples make every scale a power of two, so that exactly one value is right.
    """
    val, size = given["val"], given["group_size"]
    kind = format_of(given["q_bits"], given["q_mantisa_bits"])
    scale = (val.double().view(-1, size).abs().amax(1) / kind.reach).float()
    expected = torch.zeros(given["out"].shape).double()
    expected[:, -_SCALE_BYTES:] = scale.view(-1, 1).view(torch.uint8).double()
    allowed = torch.full(expected.shape, 255.0).double()
    allowed[:, -_SCALE_BYTES:] = 0.0
    written = Expected(expected, allowed=allowed)
    return {"out": written, "result": written}


def _dequantize_oracle(given: Arguments) -> Mapping[str, Expected]:
    """Return code * scale, with a table of all 256 codes."""
    kind = format_of(8, given["q_mantisa_bits"])
    positive = [_number(code, kind) for code in range(128)]
    table = torch.tensor([*positive, *(-number for number in positive)]).double()
    data = given["val_q"]
    values = table[data[:, :-_SCALE_BYTES].long()] * _scales(data).double()
    if "indexes" in given:
        values = values.view(-1, given["val"][0].numel())[given["indexes"].long()]
    return {"val": Expected(values.reshape(given["val"].shape))}


def _scales_oracle(given: Arguments) -> Mapping[str, Expected]:
    scales = _scales(given["out"])
    return {"result": Expected(scales.double(), allowed=torch.zeros_like(scales).double(), dtype=torch.float32)}


def _scales(data: Tensor) -> Tensor:
    return torch.from_numpy(data.numpy()[:, -_SCALE_BYTES:].copy().view("<f4"))


# --- samples ----------------------------------------------------------------------------------------------------------


def _values_to_quantize(
    generator: torch.Generator, dtype: torch.dtype, *, shape: tuple[int, ...], size: int, bits: int, mantissa: int
) -> Arguments:
    """Return arguments of ``quantize``, in which every group's scale is a power of two.

    The number with the largest magnitude is positive in every second group and negative in the others.
    """
    reach = format_of(bits, mantissa).reach
    rows = torch.rand(shape, generator=generator, dtype=torch.float64).mul(1.75).sub(0.875).view(-1, size)
    rows[:, 0] = torch.where(torch.arange(len(rows)) % 2 == 0, 1.0, -1.0)
    rows *= reach * 2.0 ** (-11 - torch.arange(len(rows)).double()[:, None] % 3)
    # Filled with bytes that are not zero, so that bytes which are never written are seen.
    out = torch.full((len(rows), size * bits // 8 + _SCALE_BYTES), 170, dtype=torch.uint8)
    return {
        "out": out, "val": rows.view(shape).to(dtype), "group_size": size,
        "stochastic_rounding": 0, "q_bits": bits, "q_mantisa_bits": mantissa,
    }  # fmt: skip


#: Group size, bits, and bits of the mantissa.
_KINDS = {"fp8": (512, 8, 3), "fp8-wide": (36, 8, 2), "fp6": (132, 6, 2), "fp12": (66, 12, 4), "fp4": (66, 4, 1)}
QUANTIZE_SAMPLES = tuple(
    KernelSample(
        name, functools.partial(_values_to_quantize, shape=(3, 2, size), size=size, bits=bits, mantissa=mantissa)
    )
    for name, (size, bits, mantissa) in _KINDS.items()
)


def _bytes_to_read(
    generator: torch.Generator, dtype: torch.dtype, *, size: int, mantissa: int, indexes: tuple[int, ...] = ()
) -> Arguments:
    """Return arguments of the dequantizers: all 8-bit codes, in rows of two groups."""
    rows, groups = 4, 2
    codes = torch.randperm(max(256, rows * groups * size), generator=generator)[: rows * groups * size] % 256
    scale = torch.rand(rows * groups, 1, generator=generator) / 256 + 2.0**-10
    data = torch.cat([codes.view(-1, size).to(torch.uint8), scale.view(torch.uint8).view(-1, 4)], dim=1)
    val = torch.full((len(indexes) or rows, groups * size), 7.0, dtype=dtype)
    given: Arguments = {"val": val, "val_q": data.contiguous()}
    if indexes:
        given["indexes"] = torch.tensor(indexes, dtype=torch.int32)
    return {**given, "group_size": size, "q_mantisa_bits": mantissa, "q_exponent_bits": 7 - mantissa}


DEQUANTIZE_SAMPLES = (
    KernelSample("fp8", functools.partial(_bytes_to_read, size=67, mantissa=3)),
    # The largest number of this format times the scale exceeds float16's range.
    KernelSample("fp8-wide", functools.partial(_bytes_to_read, size=36, mantissa=2)),
)
SELECTIVE_SAMPLES = (
    KernelSample("some", functools.partial(_bytes_to_read, size=67, mantissa=3, indexes=(2, 0, 3, 2, 1))),
    KernelSample("last", functools.partial(_bytes_to_read, size=36, mantissa=3, indexes=(3,))),
)


def _rows_with_scales(generator: torch.Generator, dtype: torch.dtype, *, width: int) -> Arguments:
    scale = torch.rand(5, 1, generator=generator)
    codes = torch.randint(0, 256, (5, width), generator=generator, dtype=torch.uint8)
    return {"out": torch.cat([codes, scale.view(torch.uint8).view(-1, 4)], dim=1).contiguous(), "num_groups": 5}


SCALES_SAMPLES = (
    KernelSample("alone", functools.partial(_rows_with_scales, width=0)),
    KernelSample("behind-codes", functools.partial(_rows_with_scales, width=66)),
)


# --- properties -------------------------------------------------------------------------------------------------------


def _there_and_back(
    functions: Any, device: torch.device, rows: Tensor, kind: Format, stochastic: int = 0
) -> tuple[Tensor, Tensor]:
    """Quantize and dequantize rows, one group each. Return the result and the quantized bytes."""
    size = rows.shape[1]
    out = torch.full((len(rows), size * kind.bits // 8 + _SCALE_BYTES), 170, dtype=torch.uint8, device=device)
    out = functions.quantize(out, rows.to(device), size, stochastic, kind.bits, kind.mantissa)
    back = torch.full_like(rows, 7.0, device=device)
    functions.dequantize(back, out, size, kind.mantissa, kind.exponent)
    return back, out


def _round_trips(functions: Any, device: torch.device, dtype: torch.dtype, generator: torch.Generator) -> Observations:
    """Check that every number comes back as the nearest one of its format, also subnormal numbers and zeros.

    Selected rows must have the same bits as in the dequantization of all rows.
    """
    for kind in FORMATS:
        spread = 2.0 ** torch.randint(-10, 1, (4, 132), generator=generator)
        rows = (torch.randn(4, 132, generator=generator) * spread).to(dtype)
        rows[1, ::3], rows[2] = 0.0, 0.0
        back, out = _there_and_back(functions, device, rows, kind)
        what = f"{kind.bits} bits, {kind.mantissa} of mantissa"
        yield what, back, round_trip(rows, kind, dtype)
        chosen = torch.full((3, 132), 7.0, dtype=dtype, device=device)
        indexes = torch.tensor([3, 0, 3], dtype=torch.int32, device=device)
        functions.selective_dequantize(chosen, out, indexes, 132, kind.mantissa, kind.exponent)
        all_of_them = back.detach().cpu().double()[[3, 0, 3]]
        yield f"{what}, selected rows", chosen, Expected(all_of_them, allowed=torch.zeros_like(all_of_them))


def _non_finite(functions: Any, device: torch.device, dtype: torch.dtype, generator: torch.Generator) -> Observations:
    """Check that one NaN or infinity makes its whole group NaN, and no other group."""
    rows = torch.randn(4, 36, generator=generator).to(dtype)
    rows[0, 3], rows[2, 0], rows[3, 35] = float("nan"), float("inf"), -float("inf")
    expected = torch.tensor([True, False, True, True])[:, None].expand(4, 36).double()
    for kind in FORMATS:
        back, _ = _there_and_back(functions, device, rows, kind)
        yield f"{kind.bits} bits", back.detach().cpu().isnan().double(), Expected(expected)


#: Numbers for one mean: its standard deviation is then 1/64 of a single draw's.
_DRAWS = 4096


def _is_unbiased(functions: Any, device: torch.device, dtype: torch.dtype, generator: torch.Generator) -> Observations:
    """Check that the mean of many equal numbers is the number, within SIGMAS standard deviations of such a mean."""
    # The kernel draws from the device's default generator; this seed makes the check repeatable.
    torch.manual_seed(int(torch.randint(1 << 30, (), generator=generator)))
    for kind in FORMATS:
        steps = torch.tensor([0.0625, 0.25, 0.5, 0.9375, -0.25, -0.75]).double()
        numbers = (1 + steps.abs() / 2**kind.mantissa).copysign(steps)
        rows = numbers[:, None].repeat(1, _DRAWS)
        rows[:, -1] = kind.reach  # makes the scale a power of two
        rows = (rows / 2.0**11).to(dtype)
        back, _ = _there_and_back(functions, device, rows, kind, stochastic=1)
        exact = rows.double()[:, 0]
        apart = 2.0 ** (-11 - kind.mantissa)
        fraction = (exact.abs() / apart) % 1.0
        spread = SIGMAS * apart * (fraction * (1 - fraction) / (_DRAWS - 1)).sqrt()
        means = back.detach().cpu().double()[:, :-1].mean(dim=1)
        allowed = spread + torch.finfo(dtype).eps * exact.abs()
        yield f"mean of each group, {kind.bits} bits", means, Expected(exact, allowed=allowed)


# --- bad arguments ----------------------------------------------------------------------------------------------------


def _check_quantize(given: Arguments) -> None:
    """Raise ``UsageError`` for tensors or formats that ``quantize`` does not take."""
    out = check_tensor("out", given["out"], dtypes=(torch.uint8,))
    val = check_tensor("val", given["val"], dtypes=FLOATS, device=out.device)
    check_choice("stochastic_rounding", given["stochastic_rounding"], (0, 1))
    check_choice("q_bits", given["q_bits"], (4, 6, 8, 12))
    allowed = tuple(kind.mantissa for kind in FORMATS if kind.bits == given["q_bits"])
    check_choice("q_mantisa_bits", given["q_mantisa_bits"], allowed)
    _check_bytes("out", out, val.numel(), given["group_size"], given["q_bits"])


def _check_bytes(name: str, data: Tensor, numbers: int, group_size: int, bits: int) -> None:
    """Raise ``UsageError`` if ``data`` has not the bytes of all groups and their scales."""
    check_positive({"group_size": group_size}, "group_size")
    # Four 6-bit or two 12-bit codes share three bytes.
    if group_size * bits % (24 if bits in (6, 12) else 8):
        raise wrong("group_size", f"a number of {bits}-bit codes that fills whole bytes", group_size)
    if numbers == 0 or numbers % group_size:
        raise wrong("val", f"a whole number of groups of {group_size}", f"{numbers} elements")
    expected = numbers // group_size * (group_size * bits // 8 + _SCALE_BYTES)
    if data.numel() != expected:
        raise wrong(name, f"{expected} bytes for {numbers // group_size} groups and their scales", data.numel())


def _check_dequantize(given: Arguments) -> None:
    """Raise ``UsageError`` for tensors or formats that ``dequantize`` does not take."""
    data = check_tensor("val_q", given["val_q"], dtypes=(torch.uint8,))
    val = check_tensor("val", given["val"], dtypes=FLOATS, device=data.device)
    allowed = tuple((kind.mantissa, kind.exponent) for kind in FORMATS)
    if (given["q_mantisa_bits"], given["q_exponent_bits"]) not in allowed:
        pairs = " or ".join(f"{mantissa} with {exponent}" for mantissa, exponent in allowed)
        found = f"{given['q_mantisa_bits']} with {given['q_exponent_bits']}"
        raise wrong("q_mantisa_bits", f"bits of mantissa and exponent: {pairs}", found)
    bits = 1 + given["q_mantisa_bits"] + given["q_exponent_bits"]
    if "indexes" not in given:
        _check_bytes("val_q", data, val.numel(), given["group_size"], bits)
        return
    _check_indexes(given, data, val, bits)


def _check_indexes(given: Arguments, data: Tensor, val: Tensor, bits: int) -> None:
    """Raise ``UsageError`` if the indexes are not rows of the quantized data."""
    indexes = check_tensor("indexes", given["indexes"], dtypes=(torch.int32,), device=data.device)
    if val.dim() < 2 or len(val) != indexes.numel():
        raise wrong("val", f"one row for each of {indexes.numel()} indexes", f"shape {tuple(val.shape)}")
    row = val[0].numel() // given["group_size"] * (given["group_size"] * bits // 8 + _SCALE_BYTES)
    if row == 0 or val[0].numel() % given["group_size"] or data.numel() % row:
        raise wrong("val_q", f"rows of {row} bytes, with as many groups as a row of val", f"{data.numel()} bytes")
    # The smallest and the largest index are read from the device, which waits for it.
    if indexes.numel() and not 0 <= int(indexes.min()) <= int(indexes.max()) < data.numel() // row:
        raise wrong(
            "indexes", f"rows from 0 to {data.numel() // row - 1}", f"{int(indexes.min())} to {int(indexes.max())}"
        )


def _check_scales(given: Arguments) -> None:
    """Raise ``UsageError`` if the rows have no room for a scale."""
    out = check_tensor("out", given["out"], dtypes=(torch.uint8,))
    check_positive(given, "num_groups")
    if out.numel() % given["num_groups"] or out.numel() // given["num_groups"] < _SCALE_BYTES:
        raise wrong("out", f"{given['num_groups']} rows of at least 4 bytes", f"shape {tuple(out.shape)}")


QUANTIZE_REFUSALS = (
    Refusal("bits", "q_bits", altered("q_bits", 5)),
    Refusal("mantissa", "q_mantisa_bits", altered("q_mantisa_bits", 4)),
    Refusal("room", "out", altered("out", lambda data: data[:, :-4].contiguous())),
    Refusal("groups", "val", altered("group_size", 500)),
    Refusal("dtypes", "val", altered("val", lambda tensor: tensor.double())),
)
DEQUANTIZE_REFUSALS = (
    Refusal("format", "q_mantisa_bits", altered("q_exponent_bits", 5)),
    Refusal("room", "val_q", altered("val_q", lambda data: data[:, :-4].contiguous())),
    Refusal("dtypes", "val_q", altered("val_q", lambda data: data.short())),
)


def _specification(
    reference: Callable[..., Any],
    oracle: Callable[[Arguments], Mapping[str, Expected]],
    samples: tuple[KernelSample, ...],
    validate: Callable[[Arguments], None],
    **settings: Any,
) -> KernelSpecification:
    """Return the specification of ``reference`` under DeepSpeed's name."""
    return KernelSpecification(
        name=f"fp_{reference.__name__}",
        attribute=reference.__name__,
        builder="FPQuantizerBuilder",
        mode=Mode.INFERENCE,
        samples=samples,
        oracle=oracle,
        budget=BUDGET,
        reference=reference,
        validate=validate,
        **{"dtypes": ("float16", "bfloat16"), **settings},
    )


SPECIFICATIONS = (
    _specification(
        quantize,
        _quantize_oracle,
        QUANTIZE_SAMPLES,
        _check_quantize,
        changes=("out",),
        refusals=QUANTIZE_REFUSALS,
        properties=(
            Property("round-trip", _round_trips),
            Property("non-finite", _non_finite),
            Property("unbiased", _is_unbiased),
        ),
    ),
    _specification(
        dequantize,
        _dequantize_oracle,
        DEQUANTIZE_SAMPLES,
        _check_dequantize,
        changes=("val",),
        refusals=DEQUANTIZE_REFUSALS,
    ),
    _specification(
        selective_dequantize,
        _dequantize_oracle,
        SELECTIVE_SAMPLES,
        _check_dequantize,
        changes=("val",),
        refusals=(
            *DEQUANTIZE_REFUSALS,
            Refusal("outside", "indexes", altered("indexes", lambda indexes: indexes + 2)),
            Refusal("rows", "val", altered("indexes", lambda indexes: indexes[1:].clone())),
        ),
    ),
    _specification(
        get_scales,
        _scales_oracle,
        SCALES_SAMPLES,
        _check_scales,
        dtypes=("float32",),
        refusals=(Refusal("rows", "out", altered("num_groups", 3)),),
    ),
)
