"""The caching allocator counts, is limited, and reuses."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch


def test_counters_follow_allocations(sim: Any) -> None:
    gc.collect()
    before = sim.memory_allocated()
    t = torch.empty(1 << 20, device="sim")

    assert sim.memory_allocated() - before == 4 << 20
    assert sim.memory_stats()["allocated_bytes.all.current"] == sim.memory_allocated()
    del t
    assert sim.memory_allocated() == before
    assert sim.max_memory_allocated() >= before + (4 << 20)
    sim.reset_peak_memory_stats()
    assert sim.max_memory_allocated() == before


def test_devices_count_for_themselves(sim: Any) -> None:
    before = sim.memory_allocated(0)
    t = torch.empty(1000, device="sim:1")

    assert sim.memory_allocated(0) == before
    assert t.device.index == 1


def test_too_much_raises_and_leaves_the_device_usable(sim: Any) -> None:
    with pytest.raises(torch.OutOfMemoryError, match=r"total capacity of 4\.00 GiB"):
        torch.empty(1 << 40, device="sim")

    assert torch.ones(3, device="sim").sum().item() == 3


def test_new_memory_is_poisoned(sim: Any) -> None:
    assert torch.isnan(torch.empty(100, device="sim").cpu()).all()


def test_empty_cache_gives_back_and_keeps_what_lives(sim: Any) -> None:
    kept = torch.arange(10.0, device="sim")
    torch.empty(1 << 22, device="sim")
    reserved = sim.memory_reserved()
    sim.empty_cache()

    assert sim.memory_reserved() <= reserved - (16 << 20)
    assert kept.sum().item() == 45


def test_storage_resize(sim: Any) -> None:
    t = torch.ones(10, device="sim")
    t.untyped_storage().resize_(0)
    t.untyped_storage().resize_(40)

    assert t.fill_(3).sum().item() == 30


def test_pinned_memory_says_so(sim: Any) -> None:
    pinned = torch.empty(100).pin_memory()

    assert pinned.is_pinned()
    assert pinned[10:].is_pinned()
    assert not torch.empty(100).is_pinned()
