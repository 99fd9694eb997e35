"""Peak of allocated memory: it covers every allocation and can be reset."""

from __future__ import annotations

import torch

from conformance.accelerators.capabilities import MEMORY_PEAK
from conformance.judging.finding import stub
from conformance.plan.case import case

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
