"""Memory layouts and other numbers of a module's inputs and of its parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

from conformance.numerics.covering import covering
from conformance.numerics.transfer import copied_with_memory

from .call import ModuleCall

#: Dimensions of a matrix.
_MATRIX = 2
Change = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Strides:
    """Layouts of a call: its parameters have other strides, those at some places one row for all rows.

    ``inputs`` are the layouts of its inputs of floating point, and ``gradients`` is that of the gradients of its
    results; without them, these stay as they are.
    """

    expanded: frozenset[int] = frozenset()
    inputs: tuple[Change, ...] = ()
    gradients: Change | None = None

    @property
    def name(self) -> str:
        """Return the words for the layouts in a message."""
        places = ", ".join(map(str, sorted(self.expanded)))
        inputs = ", ".join(map(_word, self.inputs))
        gradients = f", gradients {_word(self.gradients)}" if self.gradients else ""
        weights = f"weights with other strides{f', expanded at {places}' if places else ''}"
        return f"{weights}{f', inputs {inputs}' if inputs else ''}{gradients}"


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


def in_pairs(module: nn.Module, call: ModuleCall, *, training: bool) -> Iterator[Strides]:
    """Yield layouts in which each two of the parameters, inputs and gradients are expanded and strided in all ways."""
    if not has_layouts(module):
        return
    parameters = sum(1 for _ in module.parameters())
    every = parameters + len(call.floating)
    for chosen in covering(every + training):
        inputs = tuple(expanded if place in chosen else strided for place in range(parameters, every))
        gradients = expanded if every in chosen else strided
        weights = frozenset(place for place in chosen if place < parameters)
        yield Strides(weights, inputs, gradients if training else None)


def has_layouts(module: nn.Module) -> bool:
    """Return whether a parameter of a module can have other strides."""
    return any(tensor.is_floating_point() and tensor.numel() > 1 for tensor in module.parameters())


@torch.no_grad()
def repeat_rows(module: nn.Module, layout: Strides) -> None:
    """Give each parameter that the layout expands the numbers of its first row in all rows."""
    for place, parameter in enumerate(module.parameters()):
        if place in layout.expanded:
            parameter.copy_(expanded(parameter).clone())


def arrange_weights(module: nn.Module, source: nn.Module, device: torch.device, layout: Strides) -> None:
    """Give each parameter of ``module`` on ``device`` the numbers of ``source`` on the host, in a layout.

    A matrix is stored by columns, as one that is shared with a transposed layer; a vector is every second number.
    """
    places = {id(parameter): place for place, parameter in enumerate(source.parameters())}
    for part, original in zip(module.modules(), source.modules(), strict=True):
        for name, given in list(original.named_parameters(recurse=False)):
            view = _arranged(given.detach(), is_expanded=places[id(given)] in layout.expanded)
            setattr(part, name, nn.Parameter(copied_with_memory(view, device), requires_grad=given.requires_grad))


def _arranged(numbers: torch.Tensor, *, is_expanded: bool) -> torch.Tensor:
    view = by_columns(numbers) if numbers.dim() >= _MATRIX else strided(numbers)
    return expanded(view) if is_expanded else view


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


def _word(change: Change) -> str:
    return "expanded" if change is expanded else "strided"


def other_numbers(tensor: torch.Tensor) -> torch.Tensor:
    """Return the rows in reverse, and half of each number: other numbers of the same range, which the dtype has."""
    return (tensor / 2).flip(0) if tensor.dim() else tensor / 2


def with_nan(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy whose first number is NaN. No mask hides the first token."""
    found = tensor.clone(memory_format=torch.contiguous_format)
    found.view(-1)[:1] = float("nan")
    return found


def channels_last(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same numbers with the channels as the innermost dimension in memory."""
    kinds = {4: torch.channels_last, 5: torch.channels_last_3d}
    return tensor.contiguous(memory_format=kinds[tensor.dim()]) if tensor.dim() in kinds else tensor
