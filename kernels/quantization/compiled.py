"""Quantization to 4 and 8 bits and back, compiled for the CPU: csrc/quantize.cpp."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from conformance.base.errors import SetupError
from conformance.kernels.native import shared_object

_SOURCE = Path(__file__).parent / "csrc" / "quantize.cpp"
_WHO, _WITHOUT = "the compiled CPU quantizer", "PyTorch's operators do the work without it"
#: The compiled library's numbers for dtypes.
_TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
_POINTER, _INT, _LONG = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64


@functools.cache
def library() -> ctypes.CDLL:
    """Return the loaded library, with OpenMP if the compiler has it. Raises SetupError if it cannot be built."""
    try:
        loaded = shared_object(_SOURCE, _WHO, _WITHOUT, ("-fopenmp",))
    except SetupError:
        loaded = shared_object(_SOURCE, _WHO, _WITHOUT)
    loaded.quantize_groups.argtypes = [_POINTER, _INT, _LONG, _LONG, _INT, _INT, _POINTER, _POINTER, _INT]
    loaded.dequantize_groups.argtypes = [_POINTER, _POINTER, _LONG, _LONG, _INT, _INT, _POINTER, _INT, _INT]
    for function in (loaded.quantize_groups, loaded.dequantize_groups):
        function.restype = None
    return loaded


def quantize(vals: Tensor, groups: int, num_bits: int, quant_type: int) -> list[Tensor]:
    """Quantize as the portable reference does; ``vals`` is contiguous. Returns bytes and parameters."""
    source = vals.detach()
    data = torch.empty((*vals.shape[:-1], vals.shape[-1] * num_bits // 8), dtype=torch.int8)
    params = torch.empty((groups, 1 + int(quant_type)), dtype=torch.float32)
    library().quantize_groups(
        source.data_ptr(), _TYPES[vals.dtype], groups, vals.numel() // groups, num_bits, int(quant_type),
        data.data_ptr(), params.data_ptr(), torch.get_num_threads(),
    )  # fmt: skip
    return [data, params]


def dequantizer(dtype: torch.dtype) -> Callable[[Tensor, Tensor, int, int, int], Tensor]:
    """Return a function that dequantizes contiguous tensors to ``dtype`` (float32 or float16), as the references do."""

    def dequantize(data: Tensor, params: Tensor, groups: int, num_bits: int, quant_type: int) -> Tensor:
        """Return the numbers of packed codes, in the dtype of the function's name."""
        values = torch.empty((*data.shape[:-1], data.shape[-1] * 8 // num_bits), dtype=dtype)
        library().dequantize_groups(
            data.data_ptr(), params.data_ptr(), groups, values.numel() // groups, num_bits, int(quant_type),
            values.data_ptr(), _TYPES[dtype], torch.get_num_threads(),
        )  # fmt: skip
        return values

    return dequantize
