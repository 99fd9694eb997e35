"""Arguments of calls as plain data: tensors with their strides and memory, so that they outlive their process."""

from __future__ import annotations

import functools
from typing import Any

import torch

#: Marks a tensor among plain values.
_TENSOR = "\0tensor"
#: Elements of memory above which a tensor is not kept.
_MOST = 1 << 14


class TooLarge(Exception):
    """Raised for a tensor that is not worth keeping."""


def encode(value: Any) -> Any:
    """Return ``value`` with each tensor as a tuple of plain data."""
    if isinstance(value, torch.Tensor):
        return _encoded(value)
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    return value


def decode(value: Any, device: torch.device | str = "cpu") -> Any:
    """Return what ``encode`` was given, with its tensors on ``device`` and with the same strides."""
    if isinstance(value, tuple) and value[:1] == (_TENSOR,):
        return _decoded(value, torch.device(device))
    if isinstance(value, list):
        return [decode(item, device) for item in value]
    if isinstance(value, torch.device):
        return torch.device(device)
    return value


def _encoded(tensor: torch.Tensor) -> tuple[Any, ...]:
    if tensor.layout is not torch.strided or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise TooLarge("not a plain tensor")
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    span = span if tensor.numel() else 0
    if span > _MOST:
        raise TooLarge(str(span))
    memory = tensor.detach().resolve_conj().resolve_neg().as_strided((span,), (1,)).contiguous()
    data = memory.view(torch.uint8).numpy().tobytes() if span else b""
    offset = tensor.storage_offset() if tensor.storage_offset() <= 64 else 1
    return _TENSOR, tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()), offset, data


def _decoded(value: tuple[Any, ...], device: torch.device) -> torch.Tensor:
    _, dtype, shape, stride, offset, data = value
    memory = torch.zeros(offset * dtype.itemsize + len(data), dtype=torch.uint8)
    if data:
        memory[offset * dtype.itemsize :] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    whole = memory.to(device).view(dtype) if len(memory) else torch.empty(0, dtype=dtype, device=device)
    return whole.as_strided(shape, stride, offset if data else 0)


def is_tensor(value: Any) -> bool:
    """Return whether an encoded value is a tensor."""
    return isinstance(value, tuple) and value[:1] == (_TENSOR,)


def elements(value: Any) -> int:
    """Return how many elements the tensors of an encoded value have together."""
    if is_tensor(value):
        return functools.reduce(int.__mul__, value[2], 1)
    return sum(elements(item) for item in value) if isinstance(value, list) else 0
