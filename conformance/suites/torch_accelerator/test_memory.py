"""Memory counters and caches by ``torch.accelerator``, after allocations of known size."""

from __future__ import annotations

import gc
from typing import Any

import torch

from conformance.accelerators.capabilities import (
    MEMORY_PEAK,
    MEMORY_PINNED,
    MEMORY_STATS,
    MEMORY_TOTAL,
    TORCH_ACCELERATOR,
)
from conformance.judging.finding import environment_lacks, stub
from conformance.plan.case import case
from conformance.suites.accelerator.test_memory import GRANULARITY, MIB, fill, settle

from .members import check_names, check_refuses_others, indices, member, selected

#: Bytes of a tensor that no pool of small blocks holds, and no other case allocates.
SIZE = 40 * MIB
#: Counters of bytes now and at their highest, with their keys in memory_stats().
COUNTERS = {
    "memory_allocated": "allocated_bytes.all.current",
    "memory_reserved": "reserved_bytes.all.current",
    "max_memory_allocated": "allocated_bytes.all.peak",
    "max_memory_reserved": "reserved_bytes.all.peak",
}
CURRENT = dict.fromkeys(("memory_allocated", "memory_reserved"), (MEMORY_STATS,))
PEAKS = dict.fromkeys(("max_memory_allocated", "max_memory_reserved"), (MEMORY_PEAK,))


def _readings(accelerator, name: str) -> dict[int, int]:
    """Return the counter of each device; check that it is the number that the vendor and memory_stats() give."""
    read, stats = member(name), member("memory_stats")
    found = {index: read(index) for index in indices(accelerator)}
    for index, value in found.items():
        assert type(value) is int and value >= 0, f"{name}({index}) is {value!r}; it must be a number of bytes"
        own, listed = getattr(accelerator, name)(index), stats(index).get(COUNTERS[name])
        assert value == own, f"{name}({index}) is {value}, and the vendor's {name}({index}) is {own}"
        assert value == listed, f"{name}({index}) is {value}, and memory_stats({index})[{COUNTERS[name]!r}] is {listed}"
    return found


def _settled(accelerator, device) -> None:
    """Free what earlier cases left behind on each device."""
    for index in indices(accelerator):
        with selected(accelerator, device, index):
            settle(accelerator)


def _check_grown(name: str, index: int, before: dict[int, int], after: dict[int, int], least: int) -> None:
    """Check that the counter of one device has grown by the size of a tensor, and that of no other device."""
    for other, start in before.items():
        grown = after[other] - start
        if other != index:
            assert grown == 0, f"{name}({other}) changed by {grown} bytes for a tensor on device {index}"
        else:
            assert least <= grown <= SIZE + GRANULARITY, f"{name}({index}) grew by {grown} for a tensor of {SIZE} bytes"


@case("torch_accelerator.memory", requires=[TORCH_ACCELERATOR], axes={"name": CURRENT})
def test_memory(accelerator, device, name):
    """The counter grows by a tensor's bytes on its device alone, and falls again when the tensor is freed."""
    for index in indices(accelerator):
        _settled(accelerator, device)
        before, cached = _readings(accelerator, name), accelerator.memory_reserved(index)
        cached -= accelerator.memory_allocated(index)

        kept = fill(f"{device.type}:{index}", SIZE)
        # Free memory of a segment that is in use may hold the tensor.
        least = SIZE if name == "memory_allocated" else SIZE - cached
        _check_grown(name, index, before, _readings(accelerator, name), least)
        check_names(name, member(name), accelerator, device)
        del kept
        _settled(accelerator, device)

        after = _readings(accelerator, name)[index]
        assert after <= before[index], (
            f"{name}({index}) is {after} after the tensor was freed, and {before[index]} before"
        )
    check_refuses_others(name, member(name))


@case("torch_accelerator.peak", requires=[TORCH_ACCELERATOR], axes={"name": PEAKS})
def test_peak(accelerator, device, name):
    """The peak grows by the bytes of a short-lived tensor on its device alone, and stays when the tensor is freed."""
    for index in indices(accelerator):
        _settled(accelerator, device)
        for each in indices(accelerator):
            accelerator.reset_peak_memory_stats(each)
        before, cached = _readings(accelerator, name), accelerator.memory_reserved(index)
        cached -= accelerator.memory_allocated(index)

        torch.empty(SIZE, dtype=torch.uint8, device=f"{device.type}:{index}")
        _settled(accelerator, device)

        least = SIZE if name == "max_memory_allocated" else SIZE - cached
        _check_grown(name, index, before, _readings(accelerator, name), least)
        check_names(name, member(name), accelerator, device)
    check_refuses_others(name, member(name))


def _with_peaks(accelerator, device) -> dict[int, int]:
    """Give each device a peak above its current number of bytes, and return the peaks."""
    for index in indices(accelerator):
        torch.empty(SIZE, dtype=torch.uint8, device=f"{device.type}:{index}")
    _settled(accelerator, device)
    peaks = {index: accelerator.max_memory_allocated(index) for index in indices(accelerator)}
    for index, peak in peaks.items():
        now = accelerator.memory_allocated(index)
        assert peak >= now + SIZE, f"the peak of device {index} is {peak} after a tensor of {SIZE} bytes above {now}"
    return peaks


@case("torch_accelerator.reset_peak_memory_stats", requires=[TORCH_ACCELERATOR, MEMORY_PEAK])
def test_reset_peak(accelerator, device):
    """reset_peak_memory_stats() lowers the peaks of the given device, or the current one, to its current bytes."""
    reset = member("reset_peak_memory_stats")
    for index in indices(accelerator):
        for spelled in (None, index, torch.device(device.type, index), f"{device.type}:{index}"):
            peaks = _with_peaks(accelerator, device)
            home = index if spelled is None else indices(accelerator)[-1 - index]
            with selected(accelerator, device, home):
                answer = reset(spelled)
            assert answer is None, f"reset_peak_memory_stats() returned {answer!r}; it must return None"
            for other, peak in peaks.items():
                found, now = accelerator.max_memory_allocated(other), accelerator.memory_allocated(other)
                if other != index:
                    assert found == peak, f"reset_peak_memory_stats({spelled!r}) on device {home} reset device {other}"
                    continue
                if found == peak:
                    stub(
                        f"reset_peak_memory_stats({spelled!r}) has no effect: the peak stays {peak}, with {now} in use"
                    )
                assert found == now, (
                    f"after reset_peak_memory_stats({spelled!r}) the peak is {found}, with {now} in use"
                )
            reserved, top = accelerator.memory_reserved(index), accelerator.max_memory_reserved(index)
            assert top == reserved, f"after reset_peak_memory_stats() the reserved peak is {top}, not {reserved}"
    check_refuses_others("reset_peak_memory_stats", reset)


_TOTALS = tuple(f"{kind}.all.{what}" for kind in ("allocated_bytes", "allocation") for what in ("allocated", "freed"))


def _read(accelerator, stats: Any) -> dict[int, dict[str, int]]:
    return {index: dict(stats(index)) for index in indices(accelerator)}


@case("torch_accelerator.memory_stats", requires=[TORCH_ACCELERATOR, MEMORY_STATS])
def test_memory_stats(accelerator, device):
    """memory_stats() counts a tensor and its bytes when it is created, and again when it is freed."""
    stats = member("memory_stats")
    for index in indices(accelerator):
        _settled(accelerator, device)
        before = _read(accelerator, stats)
        missing = [key for key in (*COUNTERS.values(), *_TOTALS) if key not in before[index]]
        assert not missing, f"memory_stats({index}) lacks {', '.join(missing)}"
        bad = {key: value for key, value in before[index].items() if type(value) is not int or value < 0}
        assert not bad, f"memory_stats({index}) has values that are no counts: {bad}"

        kept = torch.empty(SIZE, dtype=torch.uint8, device=f"{device.type}:{index}")
        during = _read(accelerator, stats)
        check_names("memory_stats", stats, accelerator, device)
        del kept
        gc.collect()
        after = _read(accelerator, stats)

        def grown(new: dict[int, dict[str, int]], old: dict[int, dict[str, int]], key: str) -> int:
            return new[index][key] - old[index][key]  # noqa: B023 - called in this round

        created = grown(during, before, "allocated_bytes.all.allocated")
        assert SIZE <= created <= SIZE + GRANULARITY, f"{created} bytes were counted for a tensor of {SIZE} bytes"
        assert grown(during, before, "allocated_bytes.all.current") == created, "current bytes grew by another number"
        assert grown(after, during, "allocated_bytes.all.freed") == created, "another number of bytes was freed"
        assert after[index]["allocated_bytes.all.current"] == before[index]["allocated_bytes.all.current"], "bytes stay"
        for new, old, key in ((during, before, "allocated"), (after, during, "freed")):
            count = grown(new, old, f"allocation.all.{key}")
            assert count == 1, f"allocation.all.{key} grew by {count} for one tensor"
        for other in (each for each in before if each != index):
            assert during[other] == before[other], f"memory_stats({other}) changed for a tensor on device {index}"
    check_refuses_others("memory_stats", stats)


@case("torch_accelerator.reset_accumulated_memory_stats", requires=[TORCH_ACCELERATOR, MEMORY_STATS])
def test_reset_accumulated(accelerator, device):
    """reset_accumulated_memory_stats() sets the sums of the given device to 0, and keeps what is in use."""
    reset, stats = member("reset_accumulated_memory_stats"), member("memory_stats")
    for index in indices(accelerator):
        for spelled in (None, index, torch.device(device.type, index), f"{device.type}:{index}"):
            for each in indices(accelerator):
                torch.empty(MIB, dtype=torch.uint8, device=f"{device.type}:{each}")
            before = _read(accelerator, stats)
            home = index if spelled is None else indices(accelerator)[-1 - index]
            with selected(accelerator, device, home):
                answer = reset(spelled)
            after = _read(accelerator, stats)
            assert answer is None, f"reset_accumulated_memory_stats() returned {answer!r}; it must return None"
            for key in _TOTALS:
                assert before[index][key] > 0, f"{key} is {before[index][key]} after a tensor was created and freed"
                if after[index][key] == before[index][key]:
                    stub(f"reset_accumulated_memory_stats({spelled!r}) has no effect: {key} stays {after[index][key]}")
                assert after[index][key] == 0, f"{key} is {after[index][key]} after the reset, not 0"
            for key in COUNTERS.values():
                assert after[index][key] == before[index][key], f"reset_accumulated_memory_stats() changed {key}"
            for other in (each for each in before if each != index):
                assert after[other] == before[other], f"a reset of device {index} changed the sums of device {other}"
    check_refuses_others("reset_accumulated_memory_stats", reset)


@case("torch_accelerator.get_memory_info", requires=[TORCH_ACCELERATOR, MEMORY_TOTAL, MEMORY_STATS])
def test_get_memory_info(accelerator, device):
    """get_memory_info() gives free and total bytes of the device, and the free ones drop for a new tensor."""
    info = member("get_memory_info")
    for index in indices(accelerator):
        with selected(accelerator, device, index):
            free, total = info(index)
            assert total == accelerator.total_memory(index), (
                f"{total} bytes in total, {accelerator.total_memory(index)} there"
            )
            assert 0 < free <= total, f"get_memory_info({index}) says that {free} of {total} bytes are free"
            # Other processes may use the device too, so one quiet moment of several counts.
            drops = [_drop(accelerator, device, index, info) for _ in range(3)]
        assert any(SIZE - MIB <= drop <= SIZE + 2 * GRANULARITY for drop in drops), (
            f"for tensors of {SIZE} bytes get_memory_info({index})[0] dropped by {drops}"
        )
        _check_free(accelerator, index, info)
    check_names("get_memory_info", lambda *given: info(*given)[1], accelerator, device)
    check_refuses_others("get_memory_info", info)


def _check_free(accelerator, index: int, info: Any) -> None:
    """Check that the free bytes, with the cached and unused ones of this process, are the vendor's available bytes."""
    for _ in range(5):  # other processes allocate and free at the same time
        idle = accelerator.memory_reserved(index) - accelerator.memory_allocated(index)
        free, available = info(index)[0], accelerator.available_memory(index)
        if free + idle == available:
            return
    raise AssertionError(
        f"get_memory_info({index})[0] is {free} and {idle} bytes are cached, and available_memory() is {available}"
    )


def _drop(accelerator, device, index: int, info: Any) -> int:
    """Return by how much the free bytes drop for a tensor on a device while another one is current."""
    settle(accelerator)
    before = info(index)[0]
    kept = fill(f"{device.type}:{index}", SIZE)
    accelerator.synchronize(index)
    with selected(accelerator, device, indices(accelerator)[-1 - index]):
        drop = before - info(index)[0]
    del kept
    return drop


@case("torch_accelerator.empty_cache", requires=[TORCH_ACCELERATOR, MEMORY_STATS])
def test_empty_cache(accelerator, device):
    """empty_cache() gives back memory that is cached and unused on the current device, and keeps live tensors."""
    empty = member("empty_cache")
    for index in indices(accelerator):
        with selected(accelerator, device, index):
            settle(accelerator)
            kept = fill(f"{device.type}:{index}", MIB, 7)
            blocks = [fill(f"{device.type}:{index}", size) for size in (MIB, 32 * MIB) for _ in range(4)]
            del blocks
            accelerator.synchronize()
            before, used = accelerator.memory_reserved(index), accelerator.memory_allocated(index)

            answer = empty()

            after = accelerator.memory_reserved(index)
            assert answer is None, f"empty_cache() returned {answer!r}; it must return None"
            # An allocator may keep one block, or whole segments that are in use.
            if before - used >= 128 * MIB and after == before:
                stub(f"empty_cache() has no effect on device {index}: {before} bytes are reserved before and after it")
            assert after <= before and accelerator.memory_allocated(index) == used, (
                f"{after} of {before} bytes, {used} used"
            )
            assert bool((kept == 7).all()), "empty_cache() changed the values of a live tensor"


@case("torch_accelerator.empty_host_cache", requires=[TORCH_ACCELERATOR, MEMORY_PINNED])
def test_empty_host_cache(accelerator, device):
    """empty_host_cache() gives back pinned memory that is unused, and keeps pinned tensors that are alive."""
    empty, count = member("empty_host_cache"), getattr(torch.get_device_module(device), "host_memory_stats", None)
    source = torch.arange(MIB, dtype=torch.int32)
    alive = accelerator.pin_memory(source)
    freed = [accelerator.pin_memory(source) for _ in range(3)]
    del freed
    gc.collect()
    accelerator.synchronize()
    before = count() if count else {}

    answer = empty()

    assert answer is None, f"empty_host_cache() returned {answer!r}; it must return None"
    assert torch.equal(alive, source), "empty_host_cache() changed the values of a live pinned tensor"
    assert accelerator.is_pinned(alive), "a live pinned tensor is no longer pinned after empty_host_cache()"
    assert torch.equal(alive.to(device, non_blocking=True).cpu(), source), "a pinned tensor arrives with other values"
    if count is None:
        environment_lacks(f"torch.{device.type} has no host_memory_stats(), so nobody can see what was given back")
    held, used = "allocated_bytes.current", "active_bytes.current"
    if before[held] > before[used] and count()[held] == before[held]:
        stub(
            f"empty_host_cache() has no effect: {before[held]} pinned bytes before and after it, {before[used]} in use"
        )
    assert count()[used] == before[used] <= count()[held], f"after empty_host_cache() {count()} of {before} are left"
