"""Tensors as bytes, without a copy: DeepSpeed's ``UtilsBuilder``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import torch
from torch import Tensor

from conformance.kernels.arguments import check_tensor


@overload
def cast_to_byte_tensor(tensor: Tensor) -> Tensor: ...
@overload
def cast_to_byte_tensor(tensor: Sequence[Tensor]) -> list[Tensor]: ...


def cast_to_byte_tensor(tensor: Tensor | Sequence[Tensor]) -> Tensor | list[Tensor]:
    """Return the bytes of a contiguous tensor as a flat uint8 view of the same memory, on any device.

    A sequence of tensors gives a list of views. Writing to a view writes to its tensor. Raises UsageError before any
    view is made.
    """
    tensors = [tensor] if isinstance(tensor, Tensor) else list(tensor)
    for position, source in enumerate(tensors):
        check_tensor("tensor" if isinstance(tensor, Tensor) else f"tensor[{position}]", source)
    views = [source.detach().reshape(-1).view(torch.uint8) for source in tensors]
    return views[0] if isinstance(tensor, Tensor) else views
