"""What a collective holds of the device's memory once it is over: nothing."""

from __future__ import annotations

import gc

import torch
import torch.distributed as dist

from conformance.accelerators.capabilities import COMM, MEMORY_STATS
from conformance.case import case

LENGTH = 1 << 18
ROUNDS = 8
#: A backend's threads may let go of the last rounds a moment after these are over.
STILL_HELD = 4 * LENGTH * ROUNDS // 2

COLLECTIVES = {
    "all_reduce": lambda part, whole: dist.all_reduce(part),
    "broadcast": lambda part, whole: dist.broadcast(part, 0),
    "all_gather": lambda part, whole: dist.all_gather_into_tensor(whole, part),
    "reduce_scatter": lambda part, whole: dist.reduce_scatter_tensor(part, whole),
}


@case("comm.memory", requires=[COMM, MEMORY_STATS], axes={"collective": list(COLLECTIVES)}, world_size=2)
def test_memory(accelerator, device, collective, world_size, group):
    """Tensors that went through a collective are freed like others: memory in use does not grow with every round."""

    def once():
        part = torch.ones(LENGTH, device=device)
        COLLECTIVES[collective](part, torch.ones(LENGTH * world_size, device=device))
        accelerator.synchronize()

    once()
    gc.collect()
    before = accelerator.memory_allocated()

    for _ in range(ROUNDS):
        once()
    gc.collect()
    accelerator.synchronize()

    grown = accelerator.memory_allocated() - before
    assert grown < STILL_HELD, f"{grown} bytes stay allocated after {ROUNDS} rounds of tensors that are gone"
