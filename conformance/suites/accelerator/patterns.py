"""Bit patterns that copies must preserve."""

from __future__ import annotations

import torch

from conformance.numerics.compare import INTEGERS


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a host tensor as a flat uint8 tensor, in logical element order."""
    return tensor.detach().contiguous().flatten().view(torch.uint8)


def random_bits(dtype: torch.dtype, count: int) -> torch.Tensor:
    """Return ``count`` elements of ``dtype`` on the host with random bits, NaN payloads included.

    The seed is ``count``, so equal sizes give equal bits. A bool gets only the bits of False and True.
    """
    generator = torch.Generator().manual_seed(count)
    # Any other byte than 0 or 1 is no valid bool, and operations on it are undefined.
    if dtype is torch.bool:
        return torch.randint(0, 2, (count,), generator=generator).to(torch.bool)
    size = torch.empty(0, dtype=dtype).element_size()
    return torch.randint(0, 256, (count * size,), generator=generator, dtype=torch.uint8).view(dtype)


def every_value(dtype: torch.dtype) -> torch.Tensor:
    """Return all values of a dtype of one or two bytes on the host, in the order of their bits."""
    size = torch.empty(0, dtype=dtype).element_size()
    numbers = torch.arange(256**size).to(torch.int32)
    # The low bytes of little-endian int32 numbers.
    return numbers.view(torch.uint8).view(len(numbers), 4)[:, :size].contiguous().view(dtype).flatten()


def edge_values(dtype: torch.dtype) -> torch.Tensor:
    """Return the edge values of a float dtype on the host, each with both signs.

    They are zero, the smallest and largest subnormal and normal numbers, infinity, and NaN with several payloads.
    """
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
        exponent_mask - (1 << fraction) | ones,  # the largest number of the formats that have infinities
        exponent_mask,  # infinity, where the format has it
        exponent_mask | 1 << (fraction - 1),  # a quiet NaN
        exponent_mask | 1,  # a signalling NaN
        exponent_mask | ones,  # a NaN with every bit of payload
        exponent_mask | (ones >> 1),  # a NaN with the quiet bit clear and all other payload bits set
    )
    patterns = [sign << (bits - 1) | value for value in positive for sign in (0, 1)]
    # The integer dtypes above are signed, except uint8: a pattern with the top bit set is a negative number.
    signed = [value - (1 << bits) if value >> (bits - 1) and bits > 8 else value for value in patterns]
    return torch.tensor(signed, dtype=INTEGERS[bits // 8]).view(dtype)
