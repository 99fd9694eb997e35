"""Memory layouts of a module's inputs."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .call import ModuleCall

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
