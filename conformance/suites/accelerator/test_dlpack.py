"""Exchange by DLPack: the imported tensor is the exported memory, in every layout."""

from __future__ import annotations

import inspect

import torch

from conformance.accelerators.capabilities import COPY, DEVICE_MULTIPLE, DLPACK
from conformance.plan.case import case

from .patterns import random_bits

LAYOUTS = {
    "contiguous": lambda t: t,
    "transposed": lambda t: t.t(),
    "strided": lambda t: t[::3, 1::2],
    "offset": lambda t: t[7:, 5:],
    "expanded": lambda t: t[3:4].expand(9, -1),
    "scalar": lambda t: t[3, 4],
}


def check_exchange(check, device, take):
    """Export views of one memory, and check that both sides are one tensor: what one writes, the other reads."""
    host = random_bits(torch.int32, 64 * 33).view(64, 33)
    memory = host.to(device, copy=True)
    view = take(memory)

    imported = torch.from_dlpack(view)

    right = take(host)
    check.equal(str(imported.device), str(view.device), "the device")
    check.equal((imported.dtype, tuple(imported.shape)), (view.dtype, tuple(view.shape)), "dtype and shape")
    longer = [n for n, size in enumerate(view.shape) if size > 1]
    strides = [imported.stride(n) for n in longer], [view.stride(n) for n in longer]
    check.equal(*strides, "the strides")
    check.equal(imported.cpu(), right, "the numbers")
    if "device" in inspect.signature(torch.from_dlpack).parameters:
        for name in (device.type, str(view.device)):  # a device by its type alone, and with its number
            moved = torch.from_dlpack(right, device=name)
            check.equal(moved.device.type, device.type, f"the device of a tensor of the host for {name}")
            check.equal(moved.cpu(), right, f"a tensor of the host for {name}")
    memory.copy_(host.flip(0))
    check.equal(imported.cpu(), take(host.flip(0)), "the numbers after the exporter has written others")
    part = imported[:1] if imported.dim() else imported
    part.copy_(torch.full(tuple(part.shape), 77, dtype=torch.int32))
    expected = host.flip(0)
    written = take(expected)
    (written[:1] if written.dim() else written).fill_(77)
    check.equal(memory.cpu(), expected, "the exporter's memory after the importer has written")

    del view, memory
    others = [torch.full((64, 33), -1, dtype=torch.int32).to(device) for _ in range(4)]
    check.equal(imported.cpu(), take(expected), "the numbers after the exporter's last tensor has gone")
    check.equal(int(others[-1].cpu().sum()), -64 * 33, "the sum of a tensor that was made after that")


@case("accelerator.dlpack", requires=[DLPACK, COPY], axes={"layout": sorted(LAYOUTS)})
def test_dlpack(check, device, layout):
    """torch.from_dlpack shares the memory of a view, with its strides, and keeps it alive."""
    check_exchange(check, device, LAYOUTS[layout])


@case("accelerator.dlpack.devices", requires=[DLPACK, COPY, DEVICE_MULTIPLE])
def test_devices(accelerator, check):
    """An exchange keeps the device, also while another one is current."""
    before, count = accelerator.current_device(), accelerator.device_count()
    try:
        for index in range(count):
            accelerator.set_device((index + 1) % count)
            check_exchange(check, torch.device(accelerator.device_name(index)), LAYOUTS["transposed"])
            check.equal(accelerator.current_device(), (index + 1) % count, "the current device after an exchange")
    finally:
        accelerator.set_device(before)
