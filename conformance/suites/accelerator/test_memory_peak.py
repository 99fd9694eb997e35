"""Peak of allocated memory: it covers every allocation and can be reset."""

from __future__ import annotations

import torch

from conformance.accelerators.capabilities import DEVICE_MULTIPLE, MEMORY_PEAK
from conformance.judging.finding import stub
from conformance.plan.case import case

from .test_device import need_two
from .test_memory import GRANULARITY, MIB, fill, settle


@case("accelerator.memory.peak", requires=[MEMORY_PEAK])
def test_peak(accelerator, device):
    """The peak covers a tensor that was allocated and freed between two calls."""
    settle(accelerator)
    accelerator.reset_peak_memory_stats()
    before = accelerator.memory_allocated()

    # The result is not kept, so the tensor is freed at once.
    torch.empty(64 * MIB, dtype=torch.uint8, device=device)

    peak = accelerator.max_memory_allocated() - before
    assert 64 * MIB <= peak <= 64 * MIB + GRANULARITY, (
        f"the peak rose by {peak} bytes for a short-lived tensor of 64 MiB"
    )
    assert accelerator.memory_allocated() == before


@case(
    "accelerator.memory.peak_reset",
    requires=[MEMORY_PEAK],
    axes={"member": ["reset_peak_memory_stats", "reset_max_memory_allocated"]},
)
def test_peak_reset(accelerator, device, member):
    """A reset sets the peak to the current value, and the peak rises again from there."""
    settle(accelerator)  # garbage that is freed between two readings would lower the second one
    kept = fill(device, 3 * MIB)
    torch.empty(64 * MIB, dtype=torch.uint8, device=device)
    before = accelerator.max_memory_allocated()

    getattr(accelerator, member)()
    current, peak = accelerator.memory_allocated(), accelerator.max_memory_allocated()
    if peak == before > current:
        stub(f"{member}() has no effect: max_memory_allocated() is {peak} before and after it")
    torch.empty(32 * MIB, dtype=torch.uint8, device=device)
    again = accelerator.max_memory_allocated()

    assert peak == current >= kept.numel(), f"after {member}() the peak is {peak}, memory_allocated() is {current}"
    assert again >= current + 32 * MIB, f"after {member}() the peak stays at {again}"


@case("accelerator.memory.peak_inside_operations", requires=[MEMORY_PEAK])
def test_peak_inside_operations(accelerator, device):
    """The peak covers memory that operations use for intermediate results."""
    settle(accelerator)
    source = torch.ones(8 * MIB // 4, device=device)
    accelerator.reset_peak_memory_stats()
    before = accelerator.memory_allocated()

    # The sum is still alive while its product with 2 is computed.
    result = (source + 1) * 2

    peak = accelerator.max_memory_allocated() - before
    assert peak >= 16 * MIB, f"two results of 8 MiB were alive at once, but the peak rose by {peak} bytes"
    assert float(result[0]) == 4.0


@case("accelerator.memory.peak_per_device", requires=[MEMORY_PEAK, DEVICE_MULTIPLE])
def test_peak_per_device(accelerator, device, check):
    """Each device has its own peak, which a reset of another device leaves alone, whichever device is current."""
    need_two(accelerator)
    settle(accelerator)
    for index in (0, 1):
        accelerator.reset_peak_memory_stats(index)
    before = [accelerator.max_memory_allocated(index) for index in (0, 1)]

    held = torch.ones(16 * MIB, dtype=torch.uint8, device=accelerator.device_name(1))
    check.that(bool((held.cpu() == 1).all()), "a tensor on device 1 does not hold ones")
    del held

    risen = [accelerator.max_memory_allocated(index) - old for index, old in zip((0, 1), before, strict=True)]
    check.that(16 * MIB <= risen[1] <= 16 * MIB + GRANULARITY, f"16 MiB on device 1 raise its peak by {risen[1]} bytes")
    check.equal(risen[0], 0, "bytes by which memory on device 1 raises the peak of device 0")
    accelerator.reset_peak_memory_stats(0)
    check.equal(accelerator.max_memory_allocated(1) - before[1], risen[1], "the peak of device 1 after a reset of 0")
    accelerator.reset_peak_memory_stats(1)
    check.that(accelerator.max_memory_allocated(1) - before[1] < 16 * MIB, "the peak of device 1 was not reset")
