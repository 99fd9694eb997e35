"""Packing of floats' signs as bits, and unpacking: a portable reference in PyTorch, and a compiled kernel for the CPU.

Everywhere in this package the sign is s(x) = +1 if x >= 0, else -1. So it is +1 for -0.0 and -1 for NaN. A packer that
reads the sign bit instead makes sums of compressed communication wrong by twice the scale.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from conformance.base.errors import SetupError
from conformance.kernels.arguments import check_number, check_tensor, wrong
from conformance.kernels.native import shared_object

_SOURCE = Path(__file__).parent / "csrc" / "packbits.cpp"
#: Values of the bits in a byte, from the first element to the last.
_BIT_VALUES = (128, 64, 32, 16, 8, 4, 2, 1)
#: Type of ``packbits`` and ``unpackbits``.
Packing = Callable[[Tensor, int, int], Tensor]


def signs(tensor: Tensor) -> Tensor:
    """Return s(x) of every element, in the tensor's own dtype and shape."""
    return torch.where(tensor >= 0, 1.0, -1.0).to(tensor.dtype)


def packbits(tensor: Tensor, numel: int, rank: int = 0) -> Tensor:
    """Return the signs of the first ``numel`` elements: uint8 of shape (ceil(numel / 8),), most significant bit first.

    1-bit Adam (Tang et al., 2021, arXiv:2102.02888) sends them; the signature is that of DeepSpeed's XPU builder.
    ``tensor`` is float32 of any shape and strides, on any device. A bit is 1 for x >= 0; bits past ``numel`` are 0.
    ``rank`` has no effect.
    """
    bits = torch.zeros((numel + 7) // 8 * 8, dtype=torch.int32, device=tensor.device)
    bits[:numel] = tensor.detach().reshape(-1)[:numel] >= 0
    return (bits.view(-1, 8) * bits.new_tensor(_BIT_VALUES)).sum(dim=1).to(torch.uint8)


def unpackbits(packed: Tensor, n_bytes: int, rank: int = 0) -> Tensor:
    """Return 1 or -1 for each bit of the first ``n_bytes`` bytes: float32 of shape (8 * n_bytes,).

    ``packed`` is uint8 of any shape and strides, on any device. ``rank`` has no effect.
    """
    flat = packed.reshape(-1)[:n_bytes]
    return torch.where((flat.view(-1, 1) & flat.new_tensor(_BIT_VALUES)) != 0, 1.0, -1.0).to(torch.float32).view(-1)


def check_floats(tensor: object, numel: object) -> None:
    """Raise UsageError unless these are arguments of ``packbits``."""
    found = check_tensor("tensor", tensor, dtypes=(torch.float32,), contiguous=False)
    _check_count("numel", numel, found)


def check_bytes(packed: object, n_bytes: object) -> None:
    """Raise UsageError unless these are arguments of ``unpackbits``."""
    found = check_tensor("packed", packed, dtypes=(torch.uint8,), contiguous=False)
    _check_count("n_bytes", n_bytes, found)


def _check_count(argument: str, count: object, tensor: Tensor) -> None:
    check_number(argument, count, at_least=0)
    if not isinstance(count, int) or count > tensor.numel():
        raise wrong(argument, f"a whole number up to the {tensor.numel()} elements that are there", count)


def compiled_packbits() -> Packing:
    """Return ``packbits`` compiled for the CPU. Raises SetupError where it cannot be built."""
    compiled = library()

    def pack(tensor: Tensor, numel: int, rank: int = 0) -> Tensor:
        """Return a byte for every eight numbers, the first number in the highest bit."""
        flat = tensor.detach().reshape(-1)[:numel].contiguous()  # a variable, so that it lives until the call returns
        packed = torch.empty((numel + 7) // 8, dtype=torch.uint8)
        compiled.pack_signs(flat.data_ptr(), numel, packed.data_ptr())
        return packed

    return pack


def compiled_unpackbits() -> Packing:
    """Return ``unpackbits`` compiled for the CPU. Raises SetupError where it cannot be built."""
    compiled = library()

    def unpack(packed: Tensor, n_bytes: int, rank: int = 0) -> Tensor:
        """Return 1.0 or -1.0 for each bit of the first ``n_bytes`` bytes."""
        flat = packed.reshape(-1)[:n_bytes].contiguous()
        out = torch.empty(8 * n_bytes, dtype=torch.float32)
        compiled.unpack_signs(flat.data_ptr(), n_bytes, out.data_ptr())
        return out

    return unpack


@functools.cache
def fastest(device_type: str) -> tuple[Packing, Packing]:
    """Return ``packbits`` and ``unpackbits`` for tensors on ``device_type``: compiled for the CPU if possible."""
    if device_type == "cpu":
        try:
            return compiled_packbits(), compiled_unpackbits()
        except SetupError:
            # The values are the same. The builder's description says why there is no compiled kernel.
            return packbits, unpackbits
    return packbits, unpackbits


@functools.cache
def library() -> ctypes.CDLL:
    """Return the loaded library. Raises SetupError if it cannot be built."""
    loaded = shared_object(_SOURCE, "the packbits kernel", "PyTorch operators do the work without it")
    for function in (loaded.pack_signs, loaded.unpack_signs):
        function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p], None
    return loaded
