"""Copies of every dtype at sizes around vectors, blocks and pages: the whole of the tensor, and nothing beside it."""

from __future__ import annotations

import torch

from conformance.accelerators.capabilities import COPY, DTYPE, DTYPES
from conformance.case import case

from .patterns import bytes_of, random_bits

#: One element, and one to either side of what kernels and copy engines work on at a time.
SIZES = ("1", "7", "63", "65", "513", "65537")
#: Elements before and after the copied ones. An odd number, so that the copy starts off every alignment.
MARGIN = 3


def guarded(source, device):
    """A device tensor of ``source``'s size in the middle of a buffer of ones, and that buffer."""
    buffer = torch.ones(source.numel() + 2 * MARGIN).to(source.dtype).to(device)
    return buffer, buffer[MARGIN:-MARGIN]


def faults(buffer, source):
    """How many elements between the margins are not the source's, and how many in the margins are not one."""
    found, one = bytes_of(buffer.cpu()).view(buffer.numel(), -1), bytes_of(torch.ones(1).to(source.dtype))
    changed = (found[MARGIN:-MARGIN] != bytes_of(source).view(source.numel(), -1)).any(dim=1)
    hit = torch.cat([found[:MARGIN], found[-MARGIN:]]) != one

    return {"changed": int(changed.sum()), "overwritten beside": int(hit.any(dim=1).sum())}


NONE = {"changed": 0, "overwritten beside": 0}


@case("accelerator.dtype.copy_sizes", requires=[DTYPE, COPY], axes={"dtype": DTYPES, "size": SIZES})
def test_copy_sizes(device, dtype, size):
    """From the host, on the device and to the host, at an odd offset, each copy writes its elements and no others."""
    source = random_bits(getattr(torch, dtype), int(size))
    ways, previous = (("host to device", device), ("device to device", device), ("device to host", "cpu")), source

    for way, place in ways:
        buffer, target = guarded(source, place)
        target.copy_(previous)
        found, previous = faults(buffer, source), target
        assert found == NONE, f"{way}, {size} elements of {dtype}: {found}"
