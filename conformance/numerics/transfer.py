"""Copies of tensors that keep their strides, across devices and precisions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .trees import mapped

WIDER = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
}


def copied(value: Any, device: torch.device) -> Any:
    """A deep copy with its tensors, device arguments and generators on ``device``; one tensor used twice stays one."""
    memo: dict[int, torch.Tensor] = {}

    def change(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            if id(leaf) not in memo:
                memo[id(leaf)] = copy_tensor(leaf, device)
            return memo[id(leaf)]
        return _moved_argument(leaf, device)

    return mapped(value, change)


def copy_tensor(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A leaf copy on ``device`` with the same strides, also where elements overlap or leave gaps."""
    source = tensor.detach()
    if source.layout is not torch.strided or source.is_contiguous() or source.is_conj() or source.is_neg():
        copy = source.clone() if device.type == "cpu" else source.to(device, copy=True)
    else:
        copy = _copy_storage(source, device)
    return copy.requires_grad_() if tensor.requires_grad else copy


def _copy_storage(source: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy the whole memory behind a view, and look at it the same way."""
    length = source.untyped_storage().nbytes() // source.element_size()
    flat = source.as_strided((length,), (1,), 0).to(device, copy=True)
    return flat.as_strided(source.shape, source.stride(), source.storage_offset()).detach()


def _moved_argument(leaf: Any, device: torch.device) -> Any:
    if isinstance(leaf, torch.device) or (isinstance(leaf, str) and leaf == "cpu"):
        return device
    if isinstance(leaf, torch.Generator) and device.type != "cpu":
        return torch.Generator(device).manual_seed(leaf.initial_seed())
    return leaf


def widened(value: Any, change: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor) -> Any:
    """A deep copy in float64 / complex128, dtype arguments included; ``change`` is applied to every wide tensor."""
    memo: dict[int, torch.Tensor] = {}

    def convert(leaf: Any) -> Any:
        if isinstance(leaf, torch.dtype):
            return WIDER.get(leaf, leaf)
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) not in memo:
            memo[id(leaf)] = _widen_tensor(leaf, change)
        return memo[id(leaf)]

    return mapped(value, convert)


def _widen_tensor(tensor: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    copy = tensor.detach().to(WIDER.get(tensor.dtype, tensor.dtype), copy=True)
    if copy.dtype.is_floating_point or copy.dtype.is_complex:
        copy = change(copy)
    return copy.requires_grad_() if tensor.requires_grad else copy
