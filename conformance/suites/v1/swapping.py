"""Swapping of tensors to files between uses."""

from __future__ import annotations

import torch

from conformance.accelerators.capabilities import Cell
from conformance.suites.ops.loading import functions

#: The kernel that ``Swap`` uses.
FILES = Cell("kernels.aio_handle", "float32", "inference")


class Swap:
    """Folder with one file for each tensor, written and read by the accelerator's asynchronous I/O handle.

    Sizes are multiples of 4096 bytes; area ops checks other sizes.
    """

    def __init__(self, accelerator, folder):
        self._handle = functions(accelerator, "AsyncIOBuilder").aio_handle(8192, 4, False, True, 1)
        self._folder = folder

    def out(self, tensors):
        """Write all tensors, wait, and overwrite them in memory with NaN, so that stale values show up."""
        for name, tensor in tensors.items():
            self._handle.async_pwrite(tensor, str(self._folder / name))
        if tensors:
            self._handle.wait()
        for tensor in tensors.values():
            tensor.fill_(float("nan"))

    def start_in(self, tensors):
        """Start to read all tensors from their files."""
        for name, tensor in tensors.items():
            self._handle.async_pread(tensor, str(self._folder / name))

    def finish_in(self):
        """Wait for the reads that were started, and return how many operations completed."""
        return self._handle.wait()


def numbers(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
