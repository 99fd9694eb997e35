"""Quantization to 4 and 8 bits and back, symmetric and asymmetric. One program quantizes one group, in two passes."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from conformance.kernels.quantization.groups import NEGLIGIBLE
from conformance.kernels.triton.launching import BLOCK, current

#: A narrower range gives no usable step. The portable reference uses the same limit.
_NEGLIGIBLE = tl.constexpr(NEGLIGIBLE)
#: Adding this number to x, |x| < 2^22, and subtracting it again rounds x to the nearest integer, ties to even: float32
#: has no fractional digits there. A rounding function has different names on different targets, or is missing.
_ROUNDER = tl.constexpr(1.5 * 2.0**23)


@triton.jit
def _code(x: tl.tensor, offset: tl.tensor, scale: tl.tensor, BITS: tl.constexpr) -> tl.tensor:
    """Return the nearest integer of ``BITS`` bits; 0 for NaN."""
    limit: tl.constexpr = 2.0 ** (BITS - 1)
    found = (x - offset) * scale
    found = tl.where(found == found, found, 0.0)
    # Clamp before rounding: the rounding trick is valid below 2^22 only.
    found = tl.where(found < -limit, -limit, tl.where(found > limit - 1, limit - 1, found))
    return ((found + _ROUNDER) - _ROUNDER).to(tl.int32)


@triton.jit
def _quantize(
    source: tl.tensor, codes: tl.tensor, params: tl.tensor, size: tl.tensor,
    ASYMMETRIC: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """Quantize one group: find its range first, then write codes and parameters."""
    group = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    least = tl.full((BLOCK,), float("inf"), dtype=tl.float32)
    most = tl.full((BLOCK,), float("-inf"), dtype=tl.float32)
    spoiled = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, size, BLOCK):
        inside = start + lanes < size
        x = tl.load(source + group * size + start + lanes, mask=inside, other=0.0).to(tl.float32)
        least = tl.where(inside & (x < least), x, least)
        most = tl.where(inside & (x > most), x, most)
        # Adds 0, or NaN where x is infinite or NaN. The comparisons above ignore NaN.
        spoiled += x * 0.0
    low, high, poison = tl.min(least), tl.max(most), tl.sum(spoiled)
    # The width is divided into ``steps`` steps. Symmetric: 0 to the largest magnitude; asymmetric: minimum to maximum.
    steps: tl.constexpr = 2.0 ** (BITS - 1 + ASYMMETRIC)
    offset = poison
    if ASYMMETRIC:
        width = (high - low) + poison
        offset = (low + high) * 0.5 + poison
        tl.store(params + group * 2 + 1, offset)
    else:
        width = tl.where(high > -low, high, -low) + poison
    # Equal numbers have no step; with step 1 they become code 0.
    flat = width < _NEGLIGIBLE
    tl.store(params + group * (1 + ASYMMETRIC), tl.where(flat, 1.0, width * (1.0 / steps)))
    scale = tl.where(flat, 1.0, tl.div_rn(steps, width))
    count = size // (8 // BITS)
    for start in range(0, count, BLOCK):
        inside = start + lanes < count
        if BITS == 8:
            x = tl.load(source + group * size + start + lanes, mask=inside, other=0.0).to(tl.float32)
            byte = _code(x, offset, scale, BITS)
        else:
            pair = source + group * size + (start + lanes) * 2
            first = tl.load(pair, mask=inside, other=0.0).to(tl.float32)
            second = tl.load(pair + 1, mask=inside, other=0.0).to(tl.float32)
            # The first number is in the high half, as in the portable reference.
            byte = (_code(first, offset, scale, BITS) << 4) | (_code(second, offset, scale, BITS) & 15)
        tl.store(codes + group * count + start + lanes, byte.to(tl.int8), mask=inside)


@triton.jit
def _dequantize(
    codes: tl.tensor, params: tl.tensor, values: tl.tensor, count: tl.tensor, parts: tl.tensor,
    ASYMMETRIC: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """Dequantize a part of one group's ``count`` bytes; each group has ``parts`` programs."""
    group = (tl.program_id(0) // parts).to(tl.int64)
    index = (tl.program_id(0) % parts) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    byte = tl.load(codes + group * count + index, mask=inside, other=0).to(tl.int32)
    offset = 0.0
    step = tl.load(params + group * (1 + ASYMMETRIC))
    if ASYMMETRIC:
        offset = tl.load(params + group * 2 + 1)
    if BITS == 8:
        tl.store(values + group * count + index, byte.to(tl.float32) * step + offset, mask=inside)
    else:
        # A right shift keeps the sign. The low half is shifted to the top of 32 bits first, so that it has a sign.
        first, second = byte >> 4, (byte << 28) >> 28
        pair = values + (group * count + index) * 2
        tl.store(pair, first.to(tl.float32) * step + offset, mask=inside)
        tl.store(pair + 1, second.to(tl.float32) * step + offset, mask=inside)


def quantize(vals: Tensor, groups: int, num_bits: int, quant_type: int) -> list[Tensor]:
    """Quantize as specified."""
    source = vals.detach()
    data = torch.empty((*vals.shape[:-1], vals.shape[-1] * num_bits // 8), dtype=torch.int8, device=vals.device)
    params = torch.empty((groups, 1 + int(quant_type)), dtype=torch.float32, device=vals.device)
    with current(source):
        _quantize[(groups,)](
            source, data, params, vals.numel() // groups, ASYMMETRIC=int(quant_type), BITS=num_bits, BLOCK=BLOCK
        )
    return [data, params]


def dequantize(data: Tensor, params: Tensor, groups: int, num_bits: int, quant_type: int) -> Tensor:
    """Dequantize to float16 as specified."""
    return _values(torch.float16, data, params, groups, num_bits, quant_type)


def dequantize_fp32(data: Tensor, params: Tensor, groups: int, num_bits: int, quant_type: int) -> Tensor:
    """Dequantize to float32 as specified."""
    return _values(torch.float32, data, params, groups, num_bits, quant_type)


def _values(dtype: torch.dtype, data: Tensor, params: Tensor, groups: int, num_bits: int, quant_type: int) -> Tensor:
    """Return the numbers of packed codes in ``dtype``."""
    values = torch.empty((*data.shape[:-1], data.shape[-1] * 8 // num_bits), dtype=dtype, device=data.device)
    count = data.numel() // groups
    if count:
        parts = triton.cdiv(count, BLOCK)
        with current(data):
            _dequantize[(groups * parts,)](
                data.view(torch.int8), params, values, count, parts,
                ASYMMETRIC=int(quant_type), BITS=num_bits, BLOCK=BLOCK,
            )  # fmt: skip
    return values
