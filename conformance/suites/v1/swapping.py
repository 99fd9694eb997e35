"""Tensors that live in files between uses."""

from __future__ import annotations

import torch

from conformance.suites.ops.loading import functions


class Swap:
    """A folder with one file for each tensor, behind a handle of the accelerator's builder.

    Sizes are multiples of 4096 bytes: what other sizes do is asked in area ops.
    """

    def __init__(self, accelerator, folder):
        self._handle = functions(accelerator, "AsyncIOBuilder").aio_handle(8192, 4, False, True, 1)
        self._folder = folder

    def out(self, tensors):
        """Write them all, wait, and spoil what is in memory: who reads it now reads NaN."""
        for name, tensor in tensors.items():
            self._handle.async_pwrite(tensor, str(self._folder / name))
        if tensors:
            self._handle.wait()
        for tensor in tensors.values():
            tensor.fill_(float("nan"))

    def start_in(self, tensors):
        """Begin to read them all."""
        for name, tensor in tensors.items():
            self._handle.async_pread(tensor, str(self._folder / name))

    def finish_in(self):
        """Wait for what was begun."""
        return self._handle.wait()


def numbers(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
