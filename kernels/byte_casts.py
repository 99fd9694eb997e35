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
    """The bytes of a contiguous tensor as a flat uint8 view of the same memory, on any device; or a list of them.

    Writing to the view writes to the tensor. Raises UsageError before any view is made.
    """
    tensors = [tensor] if isinstance(tensor, Tensor) else list(tensor)
    for position, one in enumerate(tensors):
        check_tensor("tensor" if isinstance(tensor, Tensor) else f"tensor[{position}]", one)
    views = [one.detach().reshape(-1).view(torch.uint8) for one in tensors]
    return views[0] if isinstance(tensor, Tensor) else views
