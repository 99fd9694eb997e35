"""Page-locked memory cases: transfers to the device, and a swap buffer between device and files."""

from __future__ import annotations

import torch

from conformance.accelerators.capabilities import Cell
from conformance.plan.case import case
from conformance.suites.ops.loading import functions
from conformance.suites.shared_bodies import wrong_after_copy_to_device, wrong_after_copy_to_host

from .swapping import FILES, Swap, numbers

PINNED = Cell("kernels.pin_handle", "float32", "inference")


@case("v1.pin_memory.transfers", requires=[PINNED], adaptive=True)
def test_transfers(accelerator, device, check):
    """Non-blocking copies from and to page-locked memory are complete after synchronize()."""
    handle, source = functions(accelerator, "PinMemoryBuilder").pin_handle(), numbers(1, 70_001)
    locked, back = handle.new_cpu_locked_tensor(70_001, source), handle.new_cpu_locked_tensor(256 * 256, source)
    locked.copy_(source)

    to_device = wrong_after_copy_to_device(accelerator, device, locked)
    to_host = wrong_after_copy_to_host(accelerator, device, back.view(256, 256))

    check.equal(to_device, 0, "number of wrong elements after the copy to the device")
    check.equal(to_host, 0, "number of wrong elements after the copy to the host")
    check.equal(locked, source, "the page-locked source after the copies")


@case("v1.pin_memory.swap_buffer", requires=[PINNED, FILES])
def test_swap_buffer(accelerator, device, check, tmp_path):
    """A parameter swapped to a file and back through one page-locked buffer keeps its bits."""
    handle, swap = functions(accelerator, "PinMemoryBuilder").pin_handle(), Swap(accelerator, tmp_path)
    parameter = numbers(2, 64, 64).to(device)
    buffer = handle.new_cpu_locked_tensor(64 * 64, torch.zeros(1))

    buffer.copy_(parameter.view(-1))
    swap.out({"parameter": buffer})
    parameter.fill_(float("nan"))
    swap.start_in({"parameter": buffer})
    swap.finish_in()
    parameter.view(-1).copy_(buffer)

    check.equal(parameter.cpu(), numbers(2, 64, 64), "the parameter after it was read back")
    check.equal(handle.is_pinned(buffer), True, "is_pinned() of the buffer after the swap")
