"""Integers of few bits with a scale per group: the portable references' arithmetic, in float32 on any device."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

#: A group whose largest magnitude is smaller counts as zeros: its scale would not be finite in float32.
NEGLIGIBLE = 2.0**-100


class QuantizationType(IntEnum):
    """Types of quantization: code 0 means 0 (one parameter a group), or the middle of the group's range (two)."""

    Symmetric = 0
    Asymmetric = 1


@dataclass(frozen=True)
class Quantized:
    """Codes as float32 of shape (groups, elements), and parameters of shape (groups, 1 or 2): step, and offset."""

    codes: Tensor
    params: Tensor

    def values(self) -> Tensor:
        """Return the numbers that the codes stand for, in float32."""
        return decoded(self.codes, self.params)


def limits(num_bits: int) -> tuple[int, int]:
    """Return the smallest and the largest signed integer of ``num_bits`` bits."""
    return -(2 ** (num_bits - 1)), 2 ** (num_bits - 1) - 1


def grouped(tensor: Tensor, groups: int) -> Tensor:
    """Return equal consecutive parts as rows, in float32, which is exact for every 16-bit dtype."""
    return tensor.detach().reshape(groups, -1).float()


def quantized(rows: Tensor, num_bits: int, quant_type: int) -> Quantized:
    """Quantize each row to integers of ``num_bits`` bits.

    A row with NaN or infinity gets codes 0, and a step that is not finite.
    """
    low, high = limits(num_bits)
    if quant_type == QuantizationType.Symmetric:
        # amax passes NaN on, so a spoiled row is known by its step.
        params = rows.abs().amax(dim=1, keepdim=True)
        scale, shifted = 2.0 ** (num_bits - 1) / params, rows
        steps = [params * 2.0 ** (1 - num_bits)]
        flat = params < NEGLIGIBLE
    else:
        least, most = rows.amin(dim=1, keepdim=True), rows.amax(dim=1, keepdim=True)
        width, offset = most - least, (least + most) * 0.5
        scale, shifted = 2.0**num_bits / width, rows - offset
        steps = [width * 2.0**-num_bits, offset]
        flat = width < NEGLIGIBLE
    steps[0] = torch.where(flat, 1.0, steps[0])
    # NaN has no integer code. A row with infinity gives NaN here as well (infinity times a scale of 0).
    codes = (shifted * torch.where(flat, 1.0, scale)).round().clamp(low, high).nan_to_num(nan=0.0)
    return Quantized(codes, torch.cat(steps, dim=1))


def decoded(codes: Tensor, params: Tensor) -> Tensor:
    """Return code * step, plus the offset if there is one: float32 of the codes' shape."""
    values = codes * params[:, :1]
    return values + params[:, 1:] if params.shape[1] == 2 else values


def stored(codes: Tensor, num_bits: int) -> Tensor:
    """Return codes as bytes, int8 of shape (bytes,); two codes of 4 bits share one, the first in its high half."""
    numbers = codes.to(torch.int8).reshape(-1)
    if num_bits == 8:
        return numbers
    pairs = numbers.reshape(-1, 2)
    return (pairs[:, 0] << 4) | (pairs[:, 1] & 15)


def loaded(data: Tensor, num_bits: int, groups: int) -> Tensor:
    """Return the codes in the bytes: float32 of shape (groups, elements)."""
    if num_bits == 4:
        # An arithmetic shift to the right keeps the sign. So the low half is first moved to the high half.
        data = torch.stack([data >> 4, (data << 4) >> 4], dim=-1)
    return data.reshape(groups, -1).float()


def swizzled(rows: Tensor, pipeline_size: int, nodes: int, devices_per_node: int) -> Tensor:
    """Return the groups in the order (slice, device, node, group), from the order (node, device, slice, group)."""
    parts = rows.reshape(nodes, devices_per_node, pipeline_size, -1, rows.shape[1])
    return parts.permute(2, 1, 0, 3, 4).reshape(rows.shape)
