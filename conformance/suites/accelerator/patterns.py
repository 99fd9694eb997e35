"""Bit patterns that copies must keep."""

from __future__ import annotations

import torch

#: What viewing a dtype's own bits as integers needs.
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous host tensor."""
    return tensor.detach().contiguous().flatten().view(torch.uint8)


def random_bits(dtype: torch.dtype, count: int) -> torch.Tensor:
    """A host tensor of every kind of value the dtype has, numbers or not."""
    generator = torch.Generator().manual_seed(count)
    if dtype is torch.bool:
        return torch.randint(0, 2, (count,), generator=generator).to(torch.bool)
    size = torch.empty(0, dtype=dtype).element_size()
    return torch.randint(0, 256, (count * size,), generator=generator, dtype=torch.uint8).view(dtype)


def edge_values(dtype: torch.dtype) -> torch.Tensor:
    """Zeros, infinities, NaN with payloads, the extremes and subnormals, each with both signs."""
    bits = torch.finfo(dtype).bits
    mantissa = {"float8_e4m3fn": 3, "float8_e5m2": 2, "float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}
    fraction = mantissa[str(dtype).removeprefix("torch.")]
    exponent_mask = ((1 << (bits - 1 - fraction)) - 1) << fraction
    ones = (1 << fraction) - 1
    positive = (
        0,  # zero
        1,  # the smallest subnormal
        ones,  # the largest subnormal
        1 << fraction,  # the smallest normal number
        exponent_mask - (1 << fraction) | ones,  # below the last exponent: the largest number of most formats
        exponent_mask,  # infinity, where the format has it
        exponent_mask | 1 << (fraction - 1),  # a quiet NaN
        exponent_mask | 1,  # a signalling NaN
        exponent_mask | ones,  # a NaN with every bit of payload
        exponent_mask | (ones >> 1),  # another payload
    )
    patterns = [sign << (bits - 1) | value for value in positive for sign in (0, 1)]
    signed = [p - (1 << bits) if p >> (bits - 1) and bits > 8 else p for p in patterns]
    return torch.tensor(signed, dtype=_INTEGERS[bits // 8]).view(dtype)
