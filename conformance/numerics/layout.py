"""Metadata of a result: dtype, shape, strides, device, gradient flag, and shared memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def difference(actual: torch.Tensor, expected: torch.Tensor, device_type: str, *, strides: bool = True) -> str:
    """Return the first difference in metadata between device and host result as a phrase; empty if there is none."""
    if actual.dtype != expected.dtype:
        return f"dtype is {actual.dtype}, expected {expected.dtype}"
    if actual.shape != expected.shape:
        return f"shape is {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    if actual.layout != expected.layout:
        return f"layout is {actual.layout}, expected {expected.layout}"
    if expected.device.type == "cpu" and actual.device.type != device_type:
        return f"the result is on {actual.device.type}, expected {device_type}"
    if actual.requires_grad != expected.requires_grad:
        return f"requires_grad is {actual.requires_grad}, expected {expected.requires_grad}"
    if strides and expected.layout is torch.strided and significant_strides(actual) != significant_strides(expected):
        return f"strides are {actual.stride()}, expected {expected.stride()}"
    return ""


def significant_strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the strides of dimensions with more than one element; the other strides address nothing."""
    if tensor.numel() == 0:
        return ()
    return tuple(stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1)


def shared_with(tensor: torch.Tensor, candidates: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """Return the positions of the candidates that share memory with ``tensor``."""
    own = storage_address(tensor)
    return tuple(i for i, candidate in enumerate(candidates) if own and storage_address(candidate) == own)


def storage_address(tensor: torch.Tensor) -> int:
    """Return the address of the tensor's memory, or 0 if it has none (empty or sparse tensors)."""
    if tensor.layout is not torch.strided:
        return 0
    return tensor.untyped_storage().data_ptr()
