"""Cases for device memory that collectives hold after they have completed."""

from __future__ import annotations

import gc

import torch
import torch.distributed as dist

from conformance.accelerators.capabilities import COMM, MEMORY_STATS
from conformance.plan.case import case

LENGTH = 1 << 18
ROUNDS = 8
#: Limit in bytes: half of all rounds. A backend's threads may release the last rounds a moment later.
STILL_HELD = 4 * LENGTH * ROUNDS // 2

COLLECTIVES = {
    "all_reduce": lambda part, whole: dist.all_reduce(part),
    "broadcast": lambda part, whole: dist.broadcast(part, 0),
    "all_gather": lambda part, whole: dist.all_gather_into_tensor(whole, part),
    "reduce_scatter": lambda part, whole: dist.reduce_scatter_tensor(part, whole),
}


@case("comm.memory", requires=[COMM, MEMORY_STATS], axes={"collective": list(COLLECTIVES)}, world_size=2)
def test_memory(accelerator, device, collective, world_size, group):
    """Allocated memory does not grow with repeated collectives on new tensors."""

    def once():
        part = torch.ones(LENGTH, device=device)
        COLLECTIVES[collective](part, torch.ones(LENGTH * world_size, device=device))
        accelerator.synchronize()
        assert bool(part.all()), f"{collective} of ones gives zeros"

    once()  # the first call may allocate buffers that the backend keeps
    gc.collect()
    before = accelerator.memory_allocated()

    for _ in range(ROUNDS):
        once()
    gc.collect()
    accelerator.synchronize()

    grown = accelerator.memory_allocated() - before
    assert grown < STILL_HELD, (
        f"{grown} bytes stay allocated after {ROUNDS} rounds whose tensors were deleted, limit {STILL_HELD}"
    )
