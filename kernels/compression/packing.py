"""Signs of floats as bits, and back: a portable reference in PyTorch, and a compiled kernel for the CPU.

The sign is s(x) = +1 if x >= 0, else -1: of -0.0 it is +1 and of NaN -1, in both and everywhere in this package.
A packer that looks at the sign bit instead breaks the sums of compressed communication by twice the scale.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import torch
from torch import Tensor

from conformance.errors import SetupError, UsageError
from conformance.kernels.native import shared_object

_SOURCE = Path(__file__).parent / "csrc" / "packbits.cpp"


def signs(tensor: Tensor) -> Tensor:
    """s(x) of every element, in the tensor's own dtype and shape."""
    return torch.where(tensor >= 0, 1.0, -1.0).to(tensor.dtype)


def packbits(tensor: Tensor, numel: int, rank: int = 0) -> Tensor:
    """The signs of the first ``numel`` elements: uint8 of shape (ceil(numel / 8),), most significant bit first.

    ``tensor`` is float32 of any shape and strides, on any device; 1 stands for x >= 0, and bits past ``numel`` are 0.
    ``rank`` has no effect: the signature is DeepSpeed's. Raises UsageError for another dtype or too few elements.
    """
    if tensor.dtype is not torch.float32 or not 0 <= numel <= tensor.numel():
        raise UsageError(
            f"packbits of {numel} elements got {tensor.numel()} of {tensor.dtype}.\n  give at least so many of float32"
        )
    flat = tensor.detach().reshape(-1)[:numel].contiguous()  # named, so that it outlives the call
    compiled = _compiled_for(tensor)
    if compiled is None:
        return portable_packbits(flat)
    packed = torch.empty((numel + 7) // 8, dtype=torch.uint8)
    compiled.pack_signs(flat.data_ptr(), numel, packed.data_ptr())
    return packed


def unpackbits(packed: Tensor, n_bytes: int, rank: int = 0) -> Tensor:
    """Floats of 1 and -1 for the bits of the first ``n_bytes`` bytes: float32 of shape (8 * n_bytes,).

    ``packed`` is uint8 of any shape, on any device. Raises UsageError for another dtype or too few bytes.
    """
    if packed.dtype is not torch.uint8 or not 0 <= n_bytes <= packed.numel():
        raise UsageError(
            f"unpackbits of {n_bytes} bytes got {packed.numel()} of {packed.dtype}.\n  give at least so many of uint8"
        )
    flat = packed.reshape(-1)[:n_bytes].contiguous()
    compiled = _compiled_for(packed)
    if compiled is None:
        return portable_unpackbits(flat)
    out = torch.empty(8 * n_bytes, dtype=torch.float32)
    compiled.unpack_signs(flat.data_ptr(), n_bytes, out.data_ptr())
    return out


def portable_packbits(flat: Tensor) -> Tensor:
    """``packbits`` of a flat tensor by PyTorch operators alone."""
    bits = torch.zeros((flat.numel() + 7) // 8 * 8, dtype=torch.int32, device=flat.device)
    bits[: flat.numel()] = flat >= 0
    weights = torch.tensor([128, 64, 32, 16, 8, 4, 2, 1], dtype=torch.int32, device=flat.device)
    return (bits.view(-1, 8) * weights).sum(dim=1).to(torch.uint8)


def portable_unpackbits(flat: Tensor) -> Tensor:
    """``unpackbits`` of a flat tensor by PyTorch operators alone."""
    places = torch.tensor([128, 64, 32, 16, 8, 4, 2, 1], dtype=torch.uint8, device=flat.device)
    return torch.where((flat.view(-1, 1) & places) != 0, 1.0, -1.0).to(torch.float32).view(-1)


def implementation(device: str = "cpu") -> str:
    """Who packs tensors of that device type, and why, in one sentence."""
    if device != "cpu":
        return f"PyTorch operators: the compiled kernel is for the CPU, and this is {device}"
    library = _library()
    return f"PyTorch operators: {library}" if isinstance(library, str) else "the compiled CPU kernel"


def _compiled_for(tensor: Tensor) -> ctypes.CDLL | None:
    library = _library() if tensor.device.type == "cpu" else ""
    return None if isinstance(library, str) else library


@functools.cache
def _library() -> ctypes.CDLL | str:
    """The compiled kernel, or why there is none: the numbers are the same without it."""
    try:
        loaded = shared_object(_SOURCE, "the packbits kernel", "PyTorch operators do the work without it")
    except SetupError as error:
        return " ".join(str(error).split())
    for function in (loaded.pack_signs, loaded.unpack_signs):
        function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p], None
    return loaded
