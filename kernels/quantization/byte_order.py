"""Which half of a byte holds the first of two 4-bit numbers: the kernels of one module have to agree about it.

A vendor's kernels may have another order than this project's, and need not be the whole family: what the reference
computes in place of a missing one is read by theirs. So bytes are turned into this project's order (the first number
in the high half) where they leave a vendor's operator, and back where they enter one. The vendor's own ``quantize`` is
asked which order is theirs.
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

#: Where ``num_bits`` stands among the arguments, whether bytes come first, and whether they are returned first.
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
    """The entry points of QuantizerBuilder as operators of the same names, in a space such as torch.ops.acme.

    Fake quantization may be registered under a name for each dtype, or under one for all.
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
    """Bytes of 4-bit numbers are turned on their way in and out, where the operator's order is the other one."""

    def adapt(operator: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            plain: list[Any] = [int(one) if isinstance(one, IntEnum) else one for one in given]
            if plain[bits_at] != 4 or first_is_high(plain[0].device):
                return operator(*plain)
            plain[0] = turned(plain[0]) if takes else plain[0]
            result = operator(*plain)
            return [turned(result[0]), *result[1:]] if gives else result

        return call

    return adapt


def turned(data: Tensor) -> Tensor:
    """The halves of every byte exchanged; the dtype stays."""
    plain = data.view(torch.uint8)
    return ((plain << 4) | (plain >> 4)).view(data.dtype)


def _first_is_high(path: str, device: torch.device) -> bool:
    """Of two numbers the second is zero."""
    data, _ = find(path)(torch.tensor([1.0, 0.0], dtype=torch.float16, device=device), 1, 4, 0)
    return (int(data.view(torch.uint8).reshape(-1)[0]) & 15) == 0
