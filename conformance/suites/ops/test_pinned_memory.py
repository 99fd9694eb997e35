"""Cases for page-locked memory from PinMemoryBuilder, as the area accelerator has them for pin_memory."""

from __future__ import annotations

from pathlib import Path

import torch

from conformance.accelerators.capabilities import Cell
from conformance.plan.case import case
from conformance.suites.shared_bodies import answers_of_is_pinned

from .loading import functions, report_kernel

PINNED = Cell("kernels.pin_handle", "float32", "inference")


def pin_handle(accelerator, check):
    """Return a new handle of the accelerator's PinMemoryBuilder."""
    make = functions(accelerator, "PinMemoryBuilder").pin_handle
    made = make()
    report_kernel(check, make)
    return made


@case("ops.pin_handle.locked", axes={"elements": ["1", "1024", "4097"]}, requires=[PINNED], adaptive=True)
def test_locked(accelerator, check, elements):
    """Locked memory has the requested size and dtype, begins at a page, keeps its values and is really locked."""
    handle, count = pin_handle(accelerator, check), int(elements)
    before = locked_bytes()

    tensor = handle.new_cpu_locked_tensor(count, torch.zeros(1, dtype=torch.int16))
    tensor.copy_(torch.arange(count))

    check.equal((tuple(tensor.shape), tensor.dtype, tensor.device.type), ((count,), torch.int16, "cpu"), "the tensor")
    check.equal(tensor.data_ptr() % 4096, 0, "the offset of its address in a page")
    check.equal(tensor.long(), torch.arange(count).to(torch.int16).long(), "its values")
    grown = locked_bytes() - before
    check.that(
        grown >= 2 * count, f"{2 * count} bytes were requested, but the process has locked only {grown} more (VmLck)"
    )


@case("ops.pin_handle.told", requires=[PINNED], adaptive=True)
def test_is_pinned(accelerator, check):
    """is_pinned is true for locked memory and its views, and false for ordinary memory and results."""
    handle = pin_handle(accelerator, check)
    tensor = handle.new_cpu_locked_tensor(4096, torch.zeros(1))

    views, results = answers_of_is_pinned(handle.is_pinned, tensor)
    others = [handle.is_pinned(torch.zeros(4096)), *results]

    check.equal(views, [True] * 5, "is_pinned of locked memory and its views")
    check.equal(others, [False] * 3, "is_pinned of ordinary memory")
    check.equal(handle.free_cpu_locked_tensor(torch.zeros(8)), False, "freeing ordinary memory")
    check.equal(handle.free_cpu_locked_tensor(tensor), True, "freeing locked memory")
    check.equal(handle.free_cpu_locked_tensor(tensor), False, "freeing it once more")


def locked_bytes():
    """Return how many bytes this process has locked (VmLck of Linux)."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmLck:"))
