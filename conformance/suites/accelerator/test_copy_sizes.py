"""Copies of every dtype at sizes around vectors, blocks and pages: every element is written, and none beside them."""

from __future__ import annotations

import torch

from conformance.accelerators.capabilities import COPY, DTYPE, DTYPES
from conformance.case import case

from .patterns import bytes_of, random_bits

#: One element, and sizes next to the vector, warp, block and page sizes that kernels and copy engines work on.
SIZES = ("1", "7", "63", "65", "513", "65537")
#: Elements before and after the copied ones. An odd number, so that the copy starts at an unaligned address.
MARGIN = 3


def guarded(source, device):
    """Return a device buffer of ones, and a view of ``source``'s size in its middle."""
    buffer = torch.ones(source.numel() + 2 * MARGIN).to(source.dtype).to(device)
    return buffer, buffer[MARGIN:-MARGIN]


def faults(buffer, source):
    """Count the elements that differ from ``source``, and the margin elements that are no longer one."""
    found, one_bytes = bytes_of(buffer.cpu()).view(buffer.numel(), -1), bytes_of(torch.ones(1).to(source.dtype))
    changed = (found[MARGIN:-MARGIN] != bytes_of(source).view(source.numel(), -1)).any(dim=1)
    overwritten = torch.cat([found[:MARGIN], found[-MARGIN:]]) != one_bytes

    return {"changed": int(changed.sum()), "overwritten beside": int(overwritten.any(dim=1).sum())}


NONE = {"changed": 0, "overwritten beside": 0}


@case("accelerator.dtype.copy_sizes", requires=[DTYPE, COPY], axes={"dtype": DTYPES, "size": SIZES})
def test_copy_sizes(check, device, dtype, size):
    """A copy from the host, on the device, or to the host writes its elements and no others."""
    source = random_bits(getattr(torch, dtype), int(size))
    ways, previous = (("host to device", device), ("device to device", device), ("device to host", "cpu")), source

    for way, target_device in ways:
        buffer, target = guarded(source, target_device)
        target.copy_(previous)
        found, previous = faults(check.bits(buffer), source), target
        assert found == NONE, f"{way}, {size} elements of {dtype}: {found}"
