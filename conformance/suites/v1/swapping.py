"""Swapping of tensors to files between uses."""

from __future__ import annotations

import torch

from conformance.accelerators.capabilities import Cell
from conformance.judging.finding import environment_lacks
from conformance.numerics.layout import storage_address
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
        self._is_ours = type(self._handle).__module__.startswith("conformance.")

    def _require_addresses(self, tensors):
        """Skip the case (environment) if this project's kernel cannot find the tensors' memory."""
        without = [tensor for tensor in tensors if storage_address(tensor) is None]
        if self._is_ours and without:
            environment_lacks(
                f"this project's AsyncIO needs the address of a tensor, and those of {without[0].device.type} have none"
            )

    def out(self, tensors):
        """Write all tensors, wait, and overwrite them in memory with NaN, so that stale values show up."""
        self._require_addresses(tensors.values())
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
