"""Work that takes a while on any device and is exact in any precision, so that a missing wait shows in the values."""

from __future__ import annotations

import time

import torch

SIDE = 256
#: Small integers: exact in every float format, also where a matrix unit rounds its inputs.
_LARGEST = 251


def numbers(device: torch.device, start: int = 0) -> torch.Tensor:
    """A matrix of numbered elements; neighbours differ."""
    values = (torch.arange(SIDE * SIDE) + start) % _LARGEST
    return values.to(torch.float32).view(SIDE, SIDE).to(device, copy=True)


class Conveyor:
    """Carries a matrix through a chain of products with the identity: the values stay, and they arrive late.

    The chain's length is chosen on the device so that it takes about ``milliseconds``. Nothing depends on the time
    itself: a device that waits where it must is right however long the chain takes.
    """

    def __init__(self, accelerator, device: torch.device, milliseconds: float = 20.0) -> None:
        self._accelerator = accelerator
        self.identity = torch.eye(SIDE, device=device)
        self._through(numbers(device), 2)
        accelerator.synchronize()
        started = time.perf_counter()
        self._through(self.identity, 4)
        accelerator.synchronize()
        each = (time.perf_counter() - started) / 4
        self.length = max(4, min(1000, int(milliseconds / 1000 / each)))

    def _through(self, value: torch.Tensor, length: int) -> torch.Tensor:
        for _ in range(length):
            value = value @ self.identity
        return value

    def carry(self, source: torch.Tensor, target: torch.Tensor, times: int = 1) -> None:
        """Queue the chain; ``target`` becomes ``source`` when it has run."""
        target.copy_(self._through(source, self.length * times))

    def seconds(self, source: torch.Tensor, times: int) -> float:
        """Return the shortest of three wall times of the chain, in seconds, with synchronize() before and after it."""
        return min(self._seconds(source, torch.empty_like(source), times) for _ in range(3))

    def _seconds(self, source: torch.Tensor, target: torch.Tensor, times: int) -> float:
        self._accelerator.synchronize()
        started = time.perf_counter()
        self.carry(source, target, times)
        self._accelerator.synchronize()
        return time.perf_counter() - started
