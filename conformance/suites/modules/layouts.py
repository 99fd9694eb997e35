"""Memory layouts of a module's inputs and of its parameters."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from conformance.numerics.transfer import copied_with_memory

from .call import ModuleCall

#: Name of the layout of parameters that ``arrange_weights`` makes.
WEIGHTS = "weights with other strides"
#: Dimensions of a matrix.
_MATRIX = 2
Change = Callable[[torch.Tensor], torch.Tensor]


def layouts(call: ModuleCall) -> dict[str, Change]:
    """Return the layouts that the inputs of this call can have, by name."""
    floating = [tensor for tensor in call.tensors if tensor.is_floating_point() and tensor.numel() > 1]
    found: dict[str, Change] = {}
    if floating:
        found["strided"] = strided
    if any(tensor.size(0) > 1 for tensor in floating):
        found["expanded"] = expanded
    if any(tensor.dim() in (4, 5) for tensor in floating):
        found["channels last"] = channels_last
    return found


def has_weights(module: nn.Module) -> bool:
    """Return whether a parameter of the module can have other strides."""
    return any(tensor.is_floating_point() and tensor.numel() > 1 for tensor in module.parameters())


def arrange_weights(module: nn.Module, source: nn.Module, device: torch.device) -> None:
    """Give each parameter of ``module`` on ``device`` the numbers of ``source`` on the host, with other strides.

    A matrix is stored by columns, as one that is shared with a transposed layer; a vector is every second number.
    """
    for part, original in zip(module.modules(), source.modules(), strict=True):
        for name, given in list(original.named_parameters(recurse=False)):
            numbers = given.detach()
            view = by_columns(numbers) if numbers.dim() >= _MATRIX else strided(numbers)
            setattr(part, name, nn.Parameter(copied_with_memory(view, device), requires_grad=given.requires_grad))


def by_columns(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same numbers with the first dimension as the innermost one in memory."""
    return tensor.transpose(0, -1).contiguous().transpose(0, -1)


def strided(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same numbers as every second element of a longer memory, from the second element on."""
    if tensor.dim() == 0:
        return tensor
    memory = tensor.new_full((*tensor.shape[:-1], 2 * tensor.shape[-1] + 1), 7.0)
    view = memory[..., 1::2]
    view.copy_(tensor)
    return view


def expanded(tensor: torch.Tensor) -> torch.Tensor:
    """Return the first row for all rows, without memory of their own."""
    return tensor[:1].expand_as(tensor) if tensor.dim() and tensor.size(0) > 1 else tensor


def channels_last(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same numbers with the channels as the innermost dimension in memory."""
    kinds = {4: torch.channels_last, 5: torch.channels_last_3d}
    return tensor.contiguous(memory_format=kinds[tensor.dim()]) if tensor.dim() in kinds else tensor
