"""Quantization by groups: a tensor is cut into ``groups`` equal parts, each with a scale of its own.

Of two numbers of 4 bits the first is in a byte's low half here, as only this module has to know.
"""

from __future__ import annotations

import torch
from torch import Tensor

SYMMETRIC = 0
#: Keeps the step of a group of equal numbers above 0.
_TINY = 1e-5


def ds_quantize(vals: Tensor, groups: int, num_bits: int) -> Tensor:
    """Round ``vals``, in place, to what symmetric quantization can represent."""
    grouped = _grouped(vals, groups)
    scale = 2**num_bits / (2 * grouped.abs().amax(dim=1, keepdim=True) + _TINY)
    return vals.copy_((_rounded(grouped * scale, num_bits) / scale).reshape(vals.shape))


def ds_quantize_asym(vals: Tensor, groups: int, num_bits: int) -> Tensor:
    """Round ``vals``, in place, to the smallest number of its group and steps above it."""
    grouped = _grouped(vals, groups)
    low, high = grouped.amin(dim=1, keepdim=True), grouped.amax(dim=1, keepdim=True)
    step = (high - low + _TINY) / 2**num_bits
    numbers = ((grouped - low) / step).round().clamp(0, 2**num_bits - 1)
    return vals.copy_((numbers * step + low).reshape(vals.shape))


def quantize(vals: Tensor, groups: int, num_bits: int, quant_type: int) -> list[Tensor]:
    """int8 data, two numbers a byte for 4 bits, and per group 1/scale (and the offset) in float32."""
    grouped = _grouped(vals, groups)
    if quant_type == SYMMETRIC:
        scale = _symmetric_scale(grouped, num_bits)
        numbers, params = grouped * scale, scale.reciprocal()
    else:
        scale, offset = _asymmetric(grouped, num_bits)
        numbers, params = (grouped - offset) * scale, torch.cat([scale.reciprocal(), offset], dim=1)
    data = _rounded(numbers, num_bits).to(torch.int8).reshape(vals.shape)
    return [_packed(data) if num_bits == 4 else data, params]


def dequantize_fp32(data: Tensor, params: Tensor, groups: int, num_bits: int, quant_type: int) -> Tensor:
    """What ``quantize`` made, as float32."""
    numbers = _unpacked(data) if num_bits == 4 else data
    values = numbers.to(torch.float32).reshape(groups, -1) * params[:, :1]
    if quant_type != SYMMETRIC:
        values = values + params[:, 1:]
    return values.reshape(numbers.shape)


def dequantize(data: Tensor, params: Tensor, groups: int, num_bits: int, quant_type: int) -> Tensor:
    """What ``quantize`` made, as float16."""
    return dequantize_fp32(data, params, groups, num_bits, quant_type).half()


def dequantize_int8_to_half_experimental(
    data: Tensor, scale: Tensor, minimum: Tensor, num_group: int, group_size: int
) -> Tensor:
    """Unsigned bytes over the group's scale, plus its minimum."""
    values = data.reshape(num_group, group_size).float() / scale.reshape(-1, 1) + minimum.reshape(-1, 1)
    return values.half()


def dequantize_int4_to_half_experimental(
    data: Tensor, scale: Tensor, minimum: Tensor, num_group: int, group_size: int
) -> Tensor:
    """The same for two numbers a byte; those who make these bytes put the first into the high half."""
    numbers = torch.stack([data >> 4, data & 15], dim=-1).flatten(-2)
    return dequantize_int8_to_half_experimental(numbers, scale, minimum, num_group, group_size)


def _grouped(vals: Tensor, groups: int) -> Tensor:
    return vals.reshape(groups, -1).float()


def _symmetric_scale(grouped: Tensor, num_bits: int) -> Tensor:
    largest = grouped.abs().amax(dim=1, keepdim=True)
    return torch.where(largest == 0, 1.0, 2 ** (num_bits - 1) / largest)


def _asymmetric(grouped: Tensor, num_bits: int) -> tuple[Tensor, Tensor]:
    low, high = grouped.amin(dim=1, keepdim=True), grouped.amax(dim=1, keepdim=True)
    return torch.where(high == low, 1.0, 2**num_bits / (high - low)), (high + low) / 2


def _rounded(numbers: Tensor, num_bits: int) -> Tensor:
    return numbers.round().clamp(-(2 ** (num_bits - 1)), 2 ** (num_bits - 1) - 1)


def _packed(data: Tensor) -> Tensor:
    low, high = data[..., ::2], data[..., 1::2]
    return (low & 15) | (high << 4)


def _unpacked(data: Tensor) -> Tensor:
    # A shift to the right keeps the sign, so the low half is moved up first.
    return torch.stack([(data << 4) >> 4, data >> 4], dim=-1).flatten(-2)
