"""Locked memory from the builder of it: what area accelerator asks of pin_memory is asked there."""

from __future__ import annotations

from pathlib import Path

import torch

from conformance.accelerators.capabilities import Cell
from conformance.case import case
from conformance.suites.shared_bodies import answers_of_is_pinned

from .loading import functions

PINNED = Cell("kernels.pin_handle", "float32", "inference")


def pinned(accelerator):
    return functions(accelerator, "PinMemoryBuilder").pin_handle()


@case("ops.pin_handle.locked", axes={"elements": ["1", "1024", "4097"]}, requires=[PINNED], adaptive=True)
def test_locked(accelerator, check, elements):
    """Memory has the size and dtype asked for, begins at a page, keeps its values, and is really locked."""
    asked, count = pinned(accelerator), int(elements)
    before = locked_bytes()

    tensor = asked.new_cpu_locked_tensor(count, torch.zeros(1, dtype=torch.int16))
    tensor.copy_(torch.arange(count))

    check.equal((tuple(tensor.shape), tensor.dtype, tensor.device.type), ((count,), torch.int16, "cpu"), "the tensor")
    check.equal(tensor.data_ptr() % 4096, 0, "its address within a page")
    check.equal(tensor.long(), torch.arange(count).to(torch.int16).long(), "its values")
    grown = locked_bytes() - before
    check.that(grown >= 2 * count, f"{2 * count} bytes were to be locked, and the process has {grown} more")


@case("ops.pin_handle.told", requires=[PINNED], adaptive=True)
def test_told(accelerator, check):
    """is_pinned is True for locked memory and its views, and False for ordinary memory, results and the freed."""
    asked = pinned(accelerator)
    tensor = asked.new_cpu_locked_tensor(4096, torch.zeros(1))

    views, results = answers_of_is_pinned(asked.is_pinned, tensor)
    others = [asked.is_pinned(torch.zeros(4096)), *results]

    check.equal(views, [True] * 5, "is_pinned of locked memory and its views")
    check.equal(others, [False] * 3, "is_pinned of ordinary memory")
    check.equal(asked.free_cpu_locked_tensor(torch.zeros(8)), False, "freeing ordinary memory")
    check.equal(asked.free_cpu_locked_tensor(tensor), True, "freeing locked memory")
    check.equal(asked.free_cpu_locked_tensor(tensor), False, "freeing it once more")


def locked_bytes():
    """VmLck of this process."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmLck:"))
