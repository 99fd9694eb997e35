"""Work that takes milliseconds on any device and is exact in any precision, so that a missing wait changes values."""

from __future__ import annotations

import time

import torch

HOST = torch.device("cpu")
SIDE = 256
#: Integers below 251 have 8 significant bits. They stay exact where a matrix unit rounds float32 to TF32 or bfloat16.
_MODULUS = 251


def numbers(device: torch.device, start: int = 0) -> torch.Tensor:
    """Return a float32 matrix of SIDE x SIDE on ``device`` that counts up from ``start`` modulo 251.

    Neighbouring elements differ, and so do matrices with different ``start`` values below 251.
    """
    values = (torch.arange(SIDE * SIDE) + start) % _MODULUS
    return values.to(torch.float32).view(SIDE, SIDE).to(device, copy=True)


def stale(target: torch.Tensor, start: int = 0) -> int:
    """Return the number of elements that differ from ``numbers(HOST, start)``."""
    return int((target.cpu() != numbers(HOST, start)).sum())


class Conveyor:
    """Copy that finishes late: a chain of matrix products with the identity between source and target.

    The values stay the same. The length of the chain is measured on the device so that it takes about ``milliseconds``.
    No verdict depends on that time: a device that waits where it must is right however long the chain takes.
    """

    def __init__(self, accelerator, device: torch.device, milliseconds: float = 20.0) -> None:
        self._accelerator = accelerator
        self.identity = torch.eye(SIDE).to(device)
        # Warm up first: one-time set-up of the math library must not count as time of a product.
        self._through(numbers(device), 2)
        # The shortest of several times counts: a busy machine makes them longer, and the chain would be too short.
        waiting, whole = (min(self._seconds_of(length) for _ in range(5)) for length in (0, 4))
        # To wait alone takes long on a device behind a network. At least a tenth of the time is taken for work.
        seconds_per_product = max(whole - waiting, whole / 10) / 4
        # Bounded: a slow device still gets a chain, and a fast device does not get an endless queue.
        self.length = max(4, min(1000, int(milliseconds / 1000 / seconds_per_product)))

    def _seconds_of(self, length: int) -> float:
        """Return the wall time of ``length`` products, in seconds."""
        self._accelerator.synchronize()
        started = time.perf_counter()
        kept = self._through(self.identity, length)  # a device that records calls computes only what lives
        self._accelerator.synchronize()
        del kept
        return time.perf_counter() - started

    def _through(self, value: torch.Tensor, length: int) -> torch.Tensor:
        """Return ``value`` after ``length`` products with the identity."""
        for _ in range(length):
            value = value @ self.identity
        return value

    def carry(self, source: torch.Tensor, target: torch.Tensor, times: int = 1) -> None:
        """Queue the chain on the current stream; ``target`` holds ``source`` once it has run ``times`` times."""
        target.copy_(self._through(source, self.length * times))

    def seconds(self, source: torch.Tensor, times: int) -> float:
        """Return the shortest of three wall times of the chain, in seconds, with synchronize() before and after it.

        ``source`` is ``numbers(device)``. AssertionError if the values have not arrived.
        """
        return min(self._seconds(source, torch.empty_like(source), times) for _ in range(3))

    def _seconds(self, source: torch.Tensor, target: torch.Tensor, times: int) -> float:
        self._accelerator.synchronize()
        started = time.perf_counter()
        self.carry(source, target, times)
        self._accelerator.synchronize()
        seconds = time.perf_counter() - started
        # The time of work that did not happen means nothing.
        assert stale(target) == 0, f"{stale(target)} elements are wrong after the work that was timed"
        return seconds
