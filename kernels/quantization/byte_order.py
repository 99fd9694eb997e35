"""Byte order of 4-bit numbers: adapters for vendors' kernels that have the first of two numbers in the low half.

This project has the first number in the high half of a byte; a vendor's kernels may have it in the low half. A vendor
may also lack some kernels of the family. Then its kernels read bytes that the reference wrote. So the halves are
exchanged where bytes leave a vendor's operator, and where they enter one. A call of the vendor's own ``quantize`` shows
which order it has.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

from conformance.kernels.specification import WORDS
from conformance.kernels.vendors import Adapt, VendorOperator, find

#: Position of ``num_bits`` among the arguments; whether the first argument is bytes; whether the first result is.
_PACKED = {
    "quantize": (2, False, True),
    "dequantize": (3, True, False),
    "dequantize_fp32": (3, True, False),
    "swizzle_quant": (2, False, True),
    "quantized_reduction": (4, True, True),
    "loco_swizzle_quant": (4, False, True),
    "loco_quantized_reduction": (6, True, True),
}
_FAKE = ("ds_quantize", "ds_sr_quantize", "ds_quantize_asym", "ds_sr_quantize_asym")
_WEIGHTS = ("dequantize_int4_to_half_experimental", "dequantize_int8_to_half_experimental")


def quantizer_operators(space: str) -> Mapping[str, VendorOperator]:
    """Return the entry points of QuantizerBuilder as operators of the same names, in a space such as torch.ops.acme.

    Fake quantization may be registered under one name for each dtype, or under one name for all.
    """
    first_is_high = functools.cache(functools.partial(_first_is_high, f"{space}.quantize"))
    return {
        **{
            f"{name}_{WORDS[dtype]}": VendorOperator(f"{space}.{name}_{WORDS[dtype]}", or_path=f"{space}.{name}")
            for name in _FAKE
            for dtype in ("float32", "float16")
        },
        **{name: VendorOperator(f"{space}.{name}", in_our_order(first_is_high, *how)) for name, how in _PACKED.items()},
        **{name: VendorOperator(f"{space}.{name}") for name in _WEIGHTS},
    }


def in_our_order(first_is_high: Callable[[torch.device], bool], bits_at: int, takes: bool, gives: bool) -> Adapt:
    """Return an adapter that exchanges the halves of bytes of 4-bit numbers if the operator has the other order.

    The first argument is exchanged if ``takes``, and the first result if ``gives``. ``bits_at`` is the position of the
    number of bits among the arguments.
    """

    def adapt(operator: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``operator`` with the numbers of each byte in our order."""

        def call(*given: Any) -> Any:
            """Call the operator, with 4-bit arguments and results turned where its order differs."""
            plain: list[Any] = [int(value) if isinstance(value, IntEnum) else value for value in given]
            if plain[bits_at] != 4 or first_is_high(plain[0].device):
                return operator(*plain)
            plain[0] = turned(plain[0]) if takes else plain[0]
            result = operator(*plain)
            return [turned(result[0]), *result[1:]] if gives else result

        return call

    return adapt


def turned(data: Tensor) -> Tensor:
    """Return ``data`` with the halves of every byte exchanged, in the same dtype."""
    plain = data.view(torch.uint8)
    return ((plain << 4) | (plain >> 4)).view(data.dtype)


def _first_is_high(path: str, device: torch.device) -> bool:
    """Return True if the operator at ``path`` puts the first number in the high half of a byte.

    Two numbers are quantized, of which the second is zero: then the half that is zero is the second one's.
    """
    data, _ = find(path)(torch.tensor([1.0, 0.0], dtype=torch.float16, device=device), 1, 4, 0)
    return (int(data.view(torch.uint8).reshape(-1)[0]) & 15) == 0
