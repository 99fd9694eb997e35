"""What the vendor's ``torch.supa`` has beyond the simulator's: its runtime, and PyTorch's older constructors."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

_SUCCESS, _INVALID_VALUE = 0, 1
#: Host memory the runtime knows: first address to bytes.
_registered: dict[int, int] = {}

_TENSOR_TYPES = {
    "BFloat16Tensor": torch.bfloat16,
    "BoolTensor": torch.bool,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "DoubleTensor": torch.float64,
    "FloatTensor": torch.float32,
    "HalfTensor": torch.float16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "ShortTensor": torch.int16,
}


def complete(module: ModuleType) -> None:
    """Give the simulator's module the vendor's extras."""
    for name, dtype in _TENSOR_TYPES.items():
        setattr(module, name, legacy_constructor(dtype, "supa"))
    module.supart = lambda: _RUNTIME
    module.check_error = check_error


def legacy_constructor(dtype: torch.dtype, device: str) -> Callable[..., torch.Tensor]:
    """As ``torch.FloatTensor``: a sequence gives its values, numbers give an uninitialised tensor of that shape."""

    def construct(*content: Any) -> torch.Tensor:
        if len(content) == 1 and not isinstance(content[0], int):
            values: Sequence[Any] = content[0]
            return torch.tensor(values, dtype=dtype, device=device)
        return torch.empty(content or (0,), dtype=dtype, device=device)

    return construct


def check_error(status: int) -> None:
    """RuntimeError for every status of the runtime but success."""
    if status != _SUCCESS:
        raise RuntimeError(f"SUPA error {status}: invalid value")


def _register(address: int, size: int, _flags: int) -> int:
    overlaps = any(address < first + length and first < address + size for first, length in _registered.items())
    if size <= 0 or not ctypes.c_void_p(address).value or overlaps:
        return _INVALID_VALUE
    _registered[address] = size
    return _SUCCESS


def _unregister(address: int) -> int:
    return _SUCCESS if _registered.pop(address, 0) else _INVALID_VALUE


_RUNTIME = SimpleNamespace(supaHostRegister=_register, supaHostUnregister=_unregister)
