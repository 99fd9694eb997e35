"""Memory numbers: of an allocator, of a driver that keeps no peaks, and of the process."""

from __future__ import annotations

import mmap
import os
import sys
from types import SimpleNamespace

import pytest
import torch

from conformance.accelerators import memory
from conformance.accelerators.memory import AllocatorMemory, DriverMemory, ProcessMemory


def test_what_the_module_lacks_torch_may_have(monkeypatch):
    accelerator = SimpleNamespace(memory_allocated=lambda index: 7)
    monkeypatch.setattr(torch, "accelerator", accelerator)
    module = SimpleNamespace(__name__="torch.bare", memory_allocated=lambda index: 5)

    assert AllocatorMemory().allocated(module, 0) == 5
    assert AllocatorMemory().allocated(SimpleNamespace(__name__="torch.bare"), 0) == 7
    with pytest.raises(NotImplementedError, match=r"neither torch\.bare nor torch\.accelerator has memory_stats"):
        AllocatorMemory().stats(module, 0)


def test_a_function_that_only_torch_has_and_that_fails_is_missing(monkeypatch):
    """torch.accelerator demands an allocator of torch's own kind, and otherwise reports a bug of PyTorch."""

    def memory_reserved(index):
        raise RuntimeError(
            "device_allocator INTERNAL ASSERT FAILED at CachingDeviceAllocator.h, report a bug to PyTorch."
        )

    monkeypatch.setattr(torch, "accelerator", SimpleNamespace(memory_reserved=memory_reserved))

    with pytest.raises(NotImplementedError, match=r"^torch\.bare has no memory_reserved\(\), and torch\.accelerator's"):
        AllocatorMemory().reserved(SimpleNamespace(__name__="torch.bare"), 0)


def test_without_a_view_of_the_device_the_rest_is_available(monkeypatch):
    monkeypatch.setattr(torch, "accelerator", None)
    module = SimpleNamespace(
        __name__="torch.bare",
        memory_allocated=lambda index: 10,
        memory_reserved=lambda index: 30,
        get_device_properties=lambda index: SimpleNamespace(total_memory=100),
    )

    assert AllocatorMemory().available(module, 0) == 90


def test_a_total_may_stand_in_the_counters():
    module = SimpleNamespace(__name__="torch.gaudi", memory_stats=lambda index: {"Limit": 64})

    assert AllocatorMemory(total_in_stats="Limit").total(module, 0) == 64


def test_a_driver_without_peaks_tells_what_is_now():
    module = SimpleNamespace(now=lambda: 3, held=lambda: 5, most=lambda: 8)
    driver = DriverMemory("now", "held", "most")

    assert (driver.allocated(module, 0), driver.peak_allocated(module, 0), driver.reserved(module, 0)) == (3, 3, 5)
    assert (driver.total(module, 0), driver.available(module, 0), driver.stats(module, 0)) == (8, 5, {})


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_the_process_peak_covers_what_is_gone_and_can_be_reset():
    process, size = ProcessMemory(), 64 << 20
    process.reset_peaks(None, 0)
    before = process.allocated(None, 0)

    # Fresh from the kernel: the C library may still have as much from an earlier test, which is no new memory.
    with mmap.mmap(-1, size) as held:
        held.write(b"1" * size)
    peak = process.peak_allocated(None, 0)
    process.reset_peaks(None, 0)

    assert peak - before > size // 2
    if os.access("/proc/self/clear_refs", os.W_OK):
        assert process.peak_allocated(None, 0) < peak - size // 2


def test_a_limit_of_the_control_group_counts(monkeypatch):
    limits = {"memory.max": [1000], "memory.current": [400]}
    monkeypatch.setattr(memory, "_control_group", lambda name: limits[name])

    assert ProcessMemory().total(None, 0) == 1000
    assert ProcessMemory().available(None, 0) == 600
