"""Metadata of a result: dtype, shape, strides, device, gradient flag, and shared memory."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch


def difference(actual: torch.Tensor, expected: torch.Tensor, device: torch.device) -> str:
    """Return the first difference in metadata between device and host result as a phrase; empty if there is none.

    A host result says that the device's has to be on ``device``; without an index, on any one of its type. Strides are
    compared by :func:`stride_difference`.
    """
    if actual.dtype != expected.dtype:
        return f"dtype is {actual.dtype}, expected {expected.dtype}"
    if actual.shape != expected.shape:
        return f"shape is {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    if actual.layout != expected.layout:
        return f"layout is {actual.layout}, expected {expected.layout}"
    if expected.device.type == "cpu" and not is_on(actual, device):
        return f"the result is on {actual.device}, expected {device}"
    if actual.requires_grad != expected.requires_grad:
        return f"requires_grad is {actual.requires_grad}, expected {expected.requires_grad}"
    return ""


def is_on(tensor: torch.Tensor, device: torch.device) -> bool:
    """Return whether a tensor is on a device; where either has no index, on any one of its type."""
    indices = (tensor.device.index, device.index)
    return tensor.device.type == device.type and (None in indices or indices[0] == indices[1])


def stride_difference(actual: torch.Tensor, expected: torch.Tensor) -> str:
    """Return the difference in strides as a phrase; empty if there is none, or if the tensors have no strides."""
    if expected.layout is not torch.strided or significant_strides(actual) == significant_strides(expected):
        return ""
    return f"strides are {actual.stride()}, expected {expected.stride()}"


def significant_strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the strides of dimensions with more than one element; the other strides address nothing."""
    if tensor.numel() == 0:
        return ()
    # Not strict: a wrapper may answer with a shape that does not belong to its strides.
    return tuple(stride for size, stride in zip(tensor.shape, tensor.stride(), strict=False) if size > 1)


def shares_memory(left: torch.Tensor, right: torch.Tensor) -> bool | None:
    """Return whether two tensors share memory, or None if that cannot be seen.

    A wrapper in Python has no address. Two of them share memory if they have the same storage object. If they have
    different ones, a device may still keep their values in one place.
    """
    if left.layout is not torch.strided or right.layout is not torch.strided:
        return False
    addresses = storage_address(left), storage_address(right)
    if None not in addresses:
        return addresses[0] == addresses[1]
    is_alias = getattr(torch._C, "_is_alias_of", None)  # private, and not in every version
    return True if left is right or (is_alias is not None and is_alias(left, right)) else None


def shared_with(tensor: torch.Tensor, candidates: Sequence[torch.Tensor]) -> tuple[bool | None, ...]:
    """Return for each candidate whether it shares memory with ``tensor``; None if that cannot be seen."""
    return tuple(shares_memory(tensor, candidate) for candidate in candidates)


def storage_address(tensor: torch.Tensor) -> int | None:
    """Return the address of the tensor's memory, or None if it has none that PyTorch can tell.

    Sparse tensors, empty ones, and wrappers in Python without memory of their own have none.
    """
    if tensor.layout is not torch.strided:
        return None
    try:
        return tensor.untyped_storage().data_ptr() or None
    except Exception:  # noqa: BLE001 - each kind of tensor without memory refuses in its own way
        return None


def lies_in_order(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's elements follow each other from the beginning of its memory, or have no strides."""
    return tensor.layout is not torch.strided or (tensor.is_contiguous() and tensor.storage_offset() == 0)


@functools.cache
def appears_contiguous(device: torch.device) -> bool:
    """Return whether all views on the device have the strides of dense tensors, as those of PyTorch/XLA have.

    One view with strides of its own shows a device that keeps them: a single wrong one is not excused.
    """
    try:
        rows = torch.zeros(4, 5, device=device)
        views = (rows.t(), rows[:, 1:3], rows[::2], rows[:1].expand(3, 5), rows.view(2, 2, 5).transpose(0, 2))
        return all(view.is_contiguous() for view in views)
    except Exception:  # noqa: BLE001 - a vendor's software may raise anything, and refuses a view then
        return False
