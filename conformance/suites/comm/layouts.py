"""Layouts of tensors in memory, and the memory around them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

#: Fills the memory around tensors. No collective of small integers gives it.
AROUND = -99.0

#: A view of a shape in flat memory.
View = Callable[[torch.Tensor, tuple[int, ...]], torch.Tensor]


def _plain(memory: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    return memory[: _count(shape)].view(shape)


def _column(memory: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    return memory[: 2 * _count(shape)].view(*shape, 2)[..., 0]


def _within_rows(memory: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    *rows, last = shape
    return memory[: _count(tuple(rows)) * (last + 3)].view(*rows, last + 3)[..., 1 : last + 1]


def _every_second_row(memory: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    return memory[: 2 * _count(shape)].view(2 * shape[0], *shape[1:])[1::2]


def _offset(memory: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    return memory[3 : 3 + _count(shape)].view(shape)


def _turned(memory: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    order = range(len(shape) - 1, -1, -1)
    return memory[: _count(shape)].view(shape[::-1]).permute(*order)


def _channels_last(memory: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    batch, channels, height, width = shape
    return memory[: _count(shape)].view(batch, height, width, channels).permute(0, 3, 1, 2)


def _expanded(memory: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    rows, *rest = shape
    return memory[:rows].view(rows, *[1] * len(rest)).expand(shape)


def _count(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()


@dataclass(frozen=True)
class Layout:
    """Layout of a tensor in memory. Elements of an expanded one share memory, so it is no output."""

    name: str
    view: View
    is_output: bool = True


PLAIN = Layout("contiguous", _plain)
GAPS = (
    Layout("a column", _column),
    Layout("a part of each row", _within_rows),
    Layout("every second row", _every_second_row),
)
DENSE = (Layout("transposed", _turned), Layout("channels_last", _channels_last), Layout("at an offset", _offset))
EXPANDED = Layout("expanded", _expanded, is_output=False)


class Memory:
    """Tensors of one call in their layouts. It remembers the memory around each of them."""

    def __init__(self, device: torch.device, given: Layout, taken: Layout) -> None:
        self.device, self.given, self.taken = device, given, taken
        self._kept: list[tuple[Layout, torch.Tensor, torch.Tensor]] = []
        self._inputs: list[tuple[torch.Tensor, torch.Tensor]] = []

    def values(self, exact: torch.Tensor) -> torch.Tensor:
        """Return the values that the layout of inputs can hold: those of one element of each row if it is expanded."""
        if self.given is not EXPANDED:
            return exact
        return exact.reshape(len(exact), -1)[:, :1].view(-1, *[1] * (exact.dim() - 1)).expand(exact.shape)

    def give(self, exact: torch.Tensor) -> torch.Tensor:
        """Return an input with the values of ``exact``, which is on the host."""
        tensor = self._made(self.given, self.values(exact))
        self._inputs.append((tensor, self.values(exact)))
        return tensor

    def change(self, exact: torch.Tensor) -> torch.Tensor:
        """Return a tensor with the values of ``exact`` that a collective changes."""
        return self._made(self.taken, exact)

    def take(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Return an output."""
        return self._made(self.taken, torch.full(shape, AROUND))

    def _made(self, layout: Layout, exact: torch.Tensor) -> torch.Tensor:
        # Twice the elements and an edge for all layouts: reading as if there were no gaps stays inside this memory.
        host = torch.full((3 * exact.numel() + 8,), AROUND)
        if layout.is_output:
            layout.view(host, exact.shape).copy_(exact)
        else:
            host[: len(exact)] = exact.reshape(len(exact), -1)[:, 0]
        memory = host.to(self.device, copy=True)
        tensor = layout.view(memory, exact.shape)
        self._kept.append((layout, memory, tensor))
        return tensor

    def check(self, check: Any, what: str) -> None:
        """Check that inputs have their values, and that the memory around all tensors is as it was."""
        for tensor, exact in self._inputs:
            check.agree(tensor.cpu(), exact.contiguous(), f"an input of {what}")
        for layout, memory, tensor in self._kept:
            around = torch.ones(memory.shape, dtype=torch.bool)
            if layout.is_output:
                layout.view(around, tuple(tensor.shape)).fill_(False)
            else:
                around[: len(tensor)] = False
            changed = memory.cpu()[around] != AROUND
            check.that(not bool(changed.any()), f"{what} wrote beside a tensor that is {layout.name}")
