"""Floating-point formats of 4 to 12 bits and their bytes: the portable reference's arithmetic, on any device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Format:
    """Format with a sign, ``exponent`` bits with the usual bias, ``mantissa`` bits, subnormals, no infinity and no NaN.

    ``reach`` is the number to which the largest number of a group is scaled: the format's largest number, or a smaller
    one where the format's range is wider than a group needs.
    """

    exponent: int
    mantissa: int
    reach: float

    @property
    def bits(self) -> int:
        """Return the size of a code in bits, with the sign."""
        return 1 + self.exponent + self.mantissa

    @property
    def bias(self) -> int:
        """Return the exponent's bias, as in IEEE 754."""
        return int(2 ** (self.exponent - 1)) - 1


#: No code means infinity or NaN, so 4 + 3 bits reach 480 and 5 + 2 bits 114688 (448 and 57344 in the OCP standard).
FORMATS = (
    Format(2, 1, 6.0),
    Format(3, 2, 28.0),
    Format(4, 3, 480.0),
    Format(5, 2, 114688.0),
    Format(7, 4, 510.0),
)


def encoded(numbers: Tensor, kind: Format, stochastic: bool) -> Tensor:
    """Return the codes (int32) of float32 numbers: the nearest, ties to even; if ``stochastic``, a random neighbour.

    The probability of a neighbour is its nearness, so the mean of many codes is the number.
    """
    bits = numbers.contiguous().view(torch.int32)
    exponent = ((bits >> 23) & 255).sub(127).clamp(min=1 - kind.bias)
    units = numbers.abs() / _power(exponent - kind.mantissa)
    below = units.floor()
    whole = below + (torch.rand_like(units) < units - below) if stochastic else units.round()
    # A mantissa that rounds up to the next power of two carries into the exponent bits, which are next to it.
    code = ((exponent + (kind.bias - 1)) << kind.mantissa) + whole.to(torch.int32)
    return code.clamp(max=2 ** (kind.bits - 1) - 1) | torch.where(bits < 0, 1 << (kind.bits - 1), 0).to(torch.int32)


def decoded(codes: Tensor, kind: Format) -> Tensor:
    """Return the float32 numbers that the codes (int32) stand for."""
    magnitude = codes & (2 ** (kind.bits - 1) - 1)
    exponent, mantissa = magnitude >> kind.mantissa, magnitude & (2**kind.mantissa - 1)
    whole = torch.where(exponent > 0, mantissa + 2**kind.mantissa, mantissa)
    numbers = whole.float() * _power(exponent.clamp(min=1) - kind.bias - kind.mantissa)
    return torch.where(codes > magnitude, -numbers, numbers)


def to_bytes(codes: Tensor, bits: int) -> Tensor:
    """Return rows of codes as bytes, lowest bits first: uint8 of shape (rows, elements * bits / 8)."""
    together, width = _word(bits)
    parts = codes.reshape(len(codes), -1, together)
    word = torch.zeros_like(parts[..., 0])
    for place in range(together):
        word = word | (parts[..., place] << (place * bits))
    found = [(word >> (8 * place)) & 255 for place in range(width)]
    return torch.stack(found, dim=-1).reshape(len(codes), -1).to(torch.uint8)


def from_bytes(data: Tensor, bits: int) -> Tensor:
    """Return the codes in rows of bytes, as int32."""
    together, width = _word(bits)
    parts = data.to(torch.int32).reshape(len(data), -1, width)
    word = torch.zeros_like(parts[..., 0])
    for place in range(width):
        word = word | (parts[..., place] << (8 * place))
    found = [(word >> (place * bits)) & (2**bits - 1) for place in range(together)]
    return torch.stack(found, dim=-1).reshape(len(data), -1)


def _word(bits: int) -> tuple[int, int]:
    """Return the smallest number of codes that fill whole bytes, and the number of these bytes."""
    return {4: (2, 1), 6: (4, 3), 8: (1, 1), 12: (2, 3)}[bits]


def _power(exponent: Tensor) -> Tensor:
    """Return two to the power of an int32, exactly, as float32; the result has to be a normal number."""
    # The exponent's bits, with the bias added, are the number.
    return ((exponent + 127) << 23).view(torch.float32)
